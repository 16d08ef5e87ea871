"""Results are written into the bundle's memory once no other process reads it."""

import os
import tempfile
from pickle import UnpicklingError

import numpy as np
import pytest
import torch

from nbmgpu.serialization import UnreadableError, container, load_bundle, restore_result
from nbmgpu.serialization.file_layout import LARGE

BIG = 2 * LARGE
"""Elements of a tensor of 8 MiB, which is tracked if the system supports it."""


@pytest.fixture
def trained(notebook):
    """A notebook with a tensor that the cell changes, and one that it does not change."""
    notebook.cell(
        f"import torch, numpy as np\nx = torch.arange({BIG}.0)\nfixed = torch.ones({BIG})\n"
        f"a = np.zeros({BIG})\nsmall = torch.zeros(3)"
    )
    return notebook


CHANGE = "x += 1; a[5:] = 7; small += 2; new = x[:3] * 2"


def load_next_run(notebook):
    """Return the namespace of a rank of the next run."""
    made = notebook.write(notebook.serialize())
    namespace = {"__name__": "__main__"}
    load_bundle(made.path, namespace, "cpu")
    return namespace


def run(notebook, storage_pool, cell):
    """Run a cell as the magic does; return the result's storage."""
    bundle = notebook.serialize()
    bundle_storage = notebook.write(bundle)
    rank = notebook.start(bundle_storage, cell)
    rank.wait()
    restored = restore_result(rank.result.path, bundle)
    notebook.namespace.update(restored.values)
    storage_pool.release("bundle", bundle_storage)
    return rank.result


@pytest.mark.parametrize("is_exclusive", [True, False])
def test_exclusive_results_reuse_the_bundles_memory(trained, storage_pool, is_exclusive):
    trained.is_exclusive = is_exclusive
    mine = trained["x"]
    for times in (1, 2):
        result = run(trained, storage_pool, CHANGE)
        assert trained["x"] is mine
        assert torch.equal(mine, torch.arange(float(BIG)) + times)
        assert np.array_equal(trained["a"], np.r_[[0.0] * 5, [7.0] * (BIG - 5)])
        assert trained["small"].tolist() == [2.0 * times] * 3
        assert trained["new"].tolist() == [2.0 * (n + times) for n in range(3)]
        assert trained["fixed"].sum() == BIG
        assert (os.fstat(result.fd).st_blocks * 512 < LARGE) == is_exclusive


def test_the_next_run_gets_the_notebooks_values(trained, storage_pool):
    run(trained, storage_pool, CHANGE)
    trained.cell("x[7] = -5; fixed[8] = 3")
    found = load_next_run(trained)
    for name in ("x", "fixed", "small"):
        assert torch.equal(found[name], trained[name])
    assert np.array_equal(found["a"], trained["a"])


def test_the_next_run_is_correct_after_a_result_was_not_restored(trained, storage_pool):
    run(trained, storage_pool, "pass")  # from now on, writes may be tracked
    bundle = trained.serialize()
    bundle_storage = trained.write(bundle)
    rank = trained.start(bundle_storage, CHANGE)
    rank.wait()
    container.write(rank.result.path, b"another", b"one", [], [])
    with pytest.raises(UnpicklingError):
        restore_result(rank.result.path, bundle)
    storage_pool.release("bundle", bundle_storage)
    assert torch.equal(trained["x"], torch.arange(float(BIG)))
    assert torch.equal(load_next_run(trained)["x"], trained["x"])


def test_the_next_run_is_correct_after_a_rank_died_while_writing(trained, storage_pool):
    run(trained, storage_pool, "pass")
    bundle = trained.serialize()
    bundle_storage = trained.write(bundle)
    cell = (
        f"{CHANGE}\nimport os\nfrom nbmgpu.serialization import container\n"
        "copy_in_threads, done = container.copy_in_threads, []\n"
        "def copy_then_exit(*args):\n"
        "    if done: os._exit(9)\n"
        "    done.append(copy_in_threads(*args))\n"
        "container.copy_in_threads = copy_then_exit"
    )
    rank = trained.start(bundle_storage, cell)
    with pytest.raises(EOFError):
        rank.wait()
    with pytest.raises(UnreadableError):
        restore_result(rank.result.path, bundle)
    storage_pool.release("bundle", bundle_storage)
    assert torch.equal(trained["x"], torch.arange(float(BIG)))
    found = load_next_run(trained)
    assert torch.equal(found["x"], trained["x"])
    assert np.array_equal(found["a"], trained["a"])


def test_a_tensor_resized_during_the_run_is_kept(trained, storage_pool):
    run(trained, storage_pool, "pass")
    bundle = trained.serialize()
    bundle_storage = trained.write(bundle)
    rank = trained.start(bundle_storage, CHANGE)
    rank.wait()
    old, kept = trained["x"], trained["fixed"].clone()
    old.untyped_storage().resize_(0)
    with pytest.raises(UnreadableError, match="resized"):
        restore_result(rank.result.path, bundle)
    storage_pool.release("bundle", bundle_storage)
    trained.cell(f"x = torch.full(({BIG},), 4.0)")
    found = load_next_run(trained)
    assert torch.equal(found["x"], trained["x"])
    assert torch.equal(found["fixed"], kept)
    assert np.array_equal(found["a"], trained["a"])


def test_memory_of_another_run_is_not_rewritten(trained):
    bundle_storage = trained.write(trained.serialize())
    before = bytes(container.read(bundle_storage.path).blocks[0])
    assert not container.rewrite(
        bundle_storage.path, [(0, memoryview(bytes(len(before))))], "another run"
    )
    assert bytes(container.read(bundle_storage.path).blocks[0]) == before


@pytest.mark.parametrize("folder", ["/dev/shm", None])
def test_a_file_with_a_name_is_not_rewritten(tmp_path, folder):
    with tempfile.NamedTemporaryFile(dir=folder or tmp_path) as file:
        _assert_not_rewritten(file.name)


def _assert_not_rewritten(path):
    container.write(path, b"", b"", [(0, 100)], [memoryview(bytes(100))])
    assert not container.rewrite(path, [(0, memoryview(b"x" * 100))], "")
    assert bytes(container.read(path).blocks[0]) == bytes(100)


def fail_to_map(*args):
    raise OSError("a limit on addresses")


def test_results_are_separate_if_the_bundle_cannot_be_mapped(trained, storage_pool):
    cell = (
        f"{CHANGE}\nfrom nbmgpu.serialization import container\noriginal = container.FileMap\n"
        "def mapped(fd, nbytes, access):\n"
        "    if access == container.SHARED: raise OSError('a limit on addresses')\n"
        "    return original(fd, nbytes, access)\n"
        "container.FileMap = mapped"
    )
    run(trained, storage_pool, "pass")
    for times in (1, 2):
        result = run(trained, storage_pool, cell)
        assert torch.equal(trained["x"], torch.arange(float(BIG)) + times)
        assert os.fstat(result.fd).st_blocks * 512 > LARGE
    assert torch.equal(load_next_run(trained)["x"], trained["x"])


def test_memory_that_cannot_be_mapped_is_written_as_a_file(trained, storage_pool, monkeypatch):
    run(trained, storage_pool, "pass")
    monkeypatch.setattr("nbmgpu.serialization.file_layout.FileMap", fail_to_map)
    for _ in range(2):
        trained.cell(f"x[3] -= 1; y = torch.rand({BIG})")
        found = load_next_run(trained)
        for name in ("x", "y", "fixed"):
            assert torch.equal(found[name], trained[name])
        storage_pool.release("bundle", trained.storages[-1])
