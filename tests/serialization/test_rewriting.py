"""What a rank has changed goes back in the bundle itself, where nobody else reads it any more."""

import os
from pickle import UnpicklingError

import numpy as np
import pytest
import torch

from nbmgpu.serialization import UnreadableError, adopt, container, receive
from nbmgpu.serialization.block_layout import LARGE

BIG = 2 * LARGE
"""Elements of a tensor of 8 MiB, which is watched where the system does so."""


@pytest.fixture
def trained(notebook):
    """A notebook with a tensor that the cell changes, and one that it does not."""
    notebook.cell(
        f"import torch, numpy as np\nx = torch.arange({BIG}.0)\nfixed = torch.ones({BIG})\n"
        f"a = np.zeros({BIG})\nsmall = torch.zeros(3)"
    )
    return notebook


CHANGE = "x += 1; a[5:] = 7; small += 2; new = x[:3] * 2"


def found_by_ranks(notebook):
    """Return what ranks of the next run find."""
    made = notebook.write(notebook.ship())
    namespace = {"__name__": "__main__"}
    receive(made.path, namespace, "cpu")
    return namespace


def run(notebook, shelf, cell):
    """Run a cell as the magic does; return the result's place."""
    shipment = notebook.ship()
    bundle = notebook.write(shipment)
    rank = notebook.start(bundle, cell)
    rank.wait()
    returned = adopt(rank.result.path, shipment)
    notebook.namespace.update(returned.values)
    shelf.give_back("bundle", bundle)
    return rank.result


@pytest.mark.parametrize("alone", [True, False])
def test_all_comes_back_and_alone_it_takes_no_new_memory(trained, shelf, alone):
    trained.alone = alone
    mine = trained["x"]
    for times in (1, 2):
        result = run(trained, shelf, CHANGE)
        assert trained["x"] is mine
        assert torch.equal(mine, torch.arange(float(BIG)) + times)
        assert np.array_equal(trained["a"], np.r_[[0.0] * 5, [7.0] * (BIG - 5)])
        assert trained["small"].tolist() == [2.0 * times] * 3
        assert trained["new"].tolist() == [2.0 * (n + times) for n in range(3)]
        assert trained["fixed"].sum() == BIG
        assert (os.fstat(result.fd).st_blocks * 512 < LARGE) == alone


def test_the_next_run_finds_what_the_notebook_has(trained, shelf):
    run(trained, shelf, CHANGE)
    trained.cell("x[7] = -5; fixed[8] = 3")
    found = found_by_ranks(trained)
    for name in ("x", "fixed", "small"):
        assert torch.equal(found[name], trained[name])
    assert np.array_equal(found["a"], trained["a"])


def test_the_next_run_finds_what_the_notebook_has_though_a_result_could_not_be_taken(
    trained, shelf
):
    run(trained, shelf, "pass")  # from now on the system may know what is written
    shipment = trained.ship()
    bundle = trained.write(shipment)
    rank = trained.start(bundle, CHANGE)
    rank.wait()
    container.write(rank.result.path, b"another", b"one", [], [])
    with pytest.raises(UnpicklingError):
        adopt(rank.result.path, shipment)
    shelf.give_back("bundle", bundle)
    assert torch.equal(trained["x"], torch.arange(float(BIG)))
    assert torch.equal(found_by_ranks(trained)["x"], trained["x"])


def test_the_next_run_finds_what_the_notebook_has_though_a_rank_has_died_at_it(trained, shelf):
    run(trained, shelf, "pass")
    shipment = trained.ship()
    bundle = trained.write(shipment)
    cell = (
        f"{CHANGE}\nimport os\nfrom nbmgpu.serialization import container\n"
        "fill, done = container.fill, []\n"
        "def dying(*args):\n"
        "    if done: os._exit(9)\n"
        "    done.append(fill(*args))\n"
        "container.fill = dying"
    )
    rank = trained.start(bundle, cell)
    with pytest.raises(EOFError):
        rank.wait()
    with pytest.raises(UnreadableError):
        adopt(rank.result.path, shipment)
    shelf.give_back("bundle", bundle)
    assert torch.equal(trained["x"], torch.arange(float(BIG)))
    found = found_by_ranks(trained)
    assert torch.equal(found["x"], trained["x"])
    assert np.array_equal(found["a"], trained["a"])


def test_a_tensor_that_was_resized_meanwhile_is_left_and_sent_as_it_is(trained, shelf):
    run(trained, shelf, "pass")
    shipment = trained.ship()
    bundle = trained.write(shipment)
    rank = trained.start(bundle, CHANGE)
    rank.wait()
    old, kept = trained["x"], trained["fixed"].clone()
    old.untyped_storage().resize_(0)
    with pytest.raises(UnreadableError, match="resized"):
        adopt(rank.result.path, shipment)
    shelf.give_back("bundle", bundle)
    trained.cell(f"x = torch.full(({BIG},), 4.0)")
    found = found_by_ranks(trained)
    assert torch.equal(found["x"], trained["x"])
    assert torch.equal(found["fixed"], kept)
    assert np.array_equal(found["a"], trained["a"])


def test_memory_that_is_another_runs_is_left_alone(trained):
    bundle = trained.write(trained.ship())
    before = bytes(container.read(bundle.path).blocks[0])
    assert not container.rewrite(bundle.path, [(0, memoryview(bytes(len(before))))], "another run")
    assert bytes(container.read(bundle.path).blocks[0]) == before


def test_a_file_on_the_disk_is_left_alone(tmp_path):
    path = str(tmp_path / "bundle")
    container.write(path, b"", b"", [(0, 100)], [memoryview(bytes(100))])
    assert not container.rewrite(path, [(0, memoryview(b"x" * 100))], "")
    assert bytes(container.read(path).blocks[0]) == bytes(100)


def refused(*args):
    raise OSError("a limit on addresses")


def test_where_the_bundle_cannot_be_mapped_again_results_go_by_themselves(trained, shelf):
    cell = (
        f"{CHANGE}\nfrom nbmgpu.serialization import container\ntrue = container.FileMap\n"
        "def mapped(fd, nbytes, access):\n"
        "    if access == container.SHARED: raise OSError('a limit on addresses')\n"
        "    return true(fd, nbytes, access)\n"
        "container.FileMap = mapped"
    )
    run(trained, shelf, "pass")
    for times in (1, 2):
        result = run(trained, shelf, cell)
        assert torch.equal(trained["x"], torch.arange(float(BIG)) + times)
        assert os.fstat(result.fd).st_blocks * 512 > LARGE
    assert torch.equal(found_by_ranks(trained)["x"], trained["x"])


def test_where_memory_cannot_be_mapped_it_is_written_as_any_file(trained, shelf, monkeypatch):
    run(trained, shelf, "pass")
    monkeypatch.setattr("nbmgpu.serialization.block_layout.FileMap", refused)
    for _ in range(2):
        trained.cell(f"x[3] -= 1; y = torch.rand({BIG})")
        found = found_by_ranks(trained)
        for name in ("x", "y", "fixed"):
            assert torch.equal(found[name], trained[name])
        shelf.give_back("bundle", trained.places[-1])
