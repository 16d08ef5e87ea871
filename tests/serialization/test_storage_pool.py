"""Pooled storage is reused, and never provides stale values."""

import gc
import os
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from large_pages import LARGE_PAGES_WORK, bytes_in_large_pages

from nbmgpu.serialization import container, load_bundle, storage
from nbmgpu.serialization.file_layout import LARGE, FileLayout
from nbmgpu.serialization.file_mapping import NewPageWriter
from nbmgpu.serialization.page_changes import is_unmodified
from nbmgpu.serialization.storage import StoragePool
from nbmgpu.serialization.threaded_copy import copy_changed, same_bytes
from nbmgpu.serialization.write_tracking import MIN_TRACKED_BYTES
from nbmgpu.system.procfs import LARGE_PAGE


def send(notebook, storage_pool):
    """Send all variables as a run does; return the storage and a rank's namespace."""
    made = notebook.write(notebook.serialize())
    namespace = {"__name__": "__main__"}
    load_bundle(made.path, namespace, "cpu")
    storage_pool.release("bundle", made)
    return made, namespace


BIG = MIN_TRACKED_BYTES // 4 + 1


def test_storage_is_reused(notebook, storage_pool):
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    first, _ = send(notebook, storage_pool)
    second, found = send(notebook, storage_pool)
    assert second is first
    assert found["x"].sum() == BIG


@pytest.mark.parametrize(
    "change",
    [
        "x[7] = 5",
        "x.numpy()[7] = 5",
        "x.data[7] = 5",
        "x.untyped_storage()[28] = 77",
        "a[-1] = 5",
        "memoryview(a)[3] = 5.0",
        "d.iloc[3, 1] = 5",
        "d['w'] = 1",
        "x = x.clone() + 1",
        "x = torch.zeros(LARGE)",
        "x, a = None, None",
        "y = x[:-1]",
        "x = x.double()",
        "model.weight.data.mul_(2)",
        "with torch.no_grad(): model.weight.uniform_()",
        "model = torch.nn.Linear(1100, 1100)",
        "b[100] = 1",
    ],
)
def test_changes_between_runs_are_sent(notebook, storage_pool, change):
    notebook.cell(
        f"import torch, numpy as np, pandas as pd\nLARGE = {LARGE}\n"
        f"x = torch.ones({BIG})\na = np.ones({BIG})\n"
        f"d = pd.DataFrame({{'u': np.ones({BIG}), 'v': np.zeros({BIG})}})\n"
        f"b = bytearray({2 * MIN_TRACKED_BYTES})\n"
        "model = torch.nn.Linear(1100, 1100)"
    )
    send(notebook, storage_pool)
    notebook.cell(change)
    _, found = send(notebook, storage_pool)
    for name in ("x", "a", "b"):
        mine, received = notebook[name], found[name]
        assert mine is received is None or bytes(memoryview(np.asarray(mine)).cast("B")) == bytes(
            memoryview(np.asarray(received)).cast("B")
        )
    assert notebook["d"].equals(found["d"])
    assert torch.equal(notebook["model"].weight, found["model"].weight)


def test_ranks_get_the_notebooks_values_after_random_changes(notebook, storage_pool):
    draw = random.Random(0)
    for _ in range(40):
        for name in "uvwxyz":
            kind = draw.choice(["new", "change", "drop", "same", "same"])
            size = draw.choice([10, BIG, BIG, 2 * BIG, BIG + 1])
            if kind == "new":
                notebook.namespace[name] = torch.rand(size)
            elif kind == "drop":
                notebook.namespace.pop(name, None)
            elif kind == "change" and name in notebook.namespace:
                tensor = notebook[name]
                tensor[draw.randrange(len(tensor))] += 1
        made, found = send(notebook, storage_pool)
        for name in "uvwxyz":
            assert (name in found) == (name in notebook.namespace)
            if name in found:
                assert torch.equal(found[name], notebook[name])
    assert made.nbytes < 16 * 6 * BIG  # memory of removed values is reused


def test_storage_in_use_is_not_overwritten(notebook, storage_pool):
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    first = notebook.write(notebook.serialize())
    namespace = {"__name__": "__main__"}
    load_bundle(first.path, namespace, "cpu")
    notebook["x"].zero_()
    second = notebook.write(notebook.serialize())
    assert second.path != first.path
    assert namespace["x"].sum() == BIG
    storage_pool.release("bundle", first)
    storage_pool.release("bundle", second)  # the pool keeps one
    assert second.fd is None


def test_tensors_of_equal_size_are_restored_correctly(notebook, storage_pool):
    notebook.cell(f"import torch\na, b, c = (torch.full(({BIG},), float(i)) for i in range(3))")
    for _ in range(2):
        notebook.mgpu("a += 10; b += 20; d = a + b; e = d + 1")
    assert [notebook[n][0].item() for n in "abcde"] == [20, 41, 2, 61, 62]
    assert [notebook[n].std().item() for n in "abcde"] == [0] * 5


def is_unmapped(made):
    shared_mapping = re.compile("rw-s .*memfd:nbmgpu-bundle")
    return made.fd is made.tracker._fd is None and not shared_mapping.search(
        Path("/proc/self/maps").read_text()
    )


@pytest.mark.parametrize("in_use", [False, True])
def test_a_forked_process_does_not_affect_the_parents_memory(notebook, storage_pool, child, in_use):
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    send(notebook, storage_pool)
    made, found = (
        (notebook.write(notebook.serialize()), {}) if in_use else send(notebook, storage_pool)
    )
    child(lambda: is_unmapped(made))
    assert made.fd is not None
    if in_use:
        storage_pool.release("bundle", made)
    notebook["x"][7] = 5
    assert found.get("x", torch.ones(BIG)).sum() == BIG
    again, found = send(notebook, storage_pool)
    assert again is made
    assert found["x"].sum() == BIG + 4


def test_a_forked_process_does_not_remove_its_parents_file(
    notebook, storage_pool, child, monkeypatch
):
    monkeypatch.setattr(storage, "available_memory", lambda: 0)
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    made = notebook.write(notebook.serialize())

    def close_in_child():
        made.close()
        return True

    child(close_in_child)
    assert Path(made.path).exists()
    made.close()


def test_closed_storage_is_freed(notebook, storage_pool):
    gc.collect()  # what other tests have left would be freed meanwhile
    before = _open_files(), _mapped_bundles()
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    for _ in range(2):
        made = notebook.write(notebook.serialize())
        storage_pool.release("bundle", made)
    storage_pool.clear()
    assert made.fd is None
    assert (_open_files(), _mapped_bundles()) == before


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _mapped_bundles() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:nbmgpu-bundle")


def test_the_pool_keeps_at_most_a_quarter_of_free_memory(notebook, storage_pool, monkeypatch):
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    made = notebook.write(notebook.serialize())
    free = 3 * made.nbytes
    monkeypatch.setattr(storage, "available_memory", lambda: free)
    monkeypatch.setattr(storage, "RESERVED_BYTES", 0)
    storage_pool.release("bundle", made)
    assert made.fd is not None
    assert notebook.write(notebook.serialize()) is made
    free -= 1
    storage_pool.release("bundle", made)
    assert made.fd is None


def test_pooled_storage_is_freed_if_it_would_grow_too_far(notebook, storage_pool, monkeypatch):
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    first, _ = send(notebook, storage_pool)
    notebook.cell(f"y = torch.ones({8 * BIG})")
    monkeypatch.setattr(storage, "available_memory", lambda: LARGE)
    monkeypatch.setattr(storage, "RESERVED_BYTES", 0)
    made = notebook.write(notebook.serialize())
    assert first.fd is None
    assert made.notice  # on disk
    made.close()


def test_an_earlier_result_in_reused_storage_is_incomplete(tmp_path):
    storage_pool = StoragePool()
    first = storage_pool.acquire(tmp_path, "result-0", 100)
    container.write(first.path, b"old", b"", [], [])
    storage_pool.release("result-0", first)
    second = storage_pool.acquire(tmp_path, "result-0", 100)
    assert second is first
    with pytest.raises(ValueError, match="incomplete"):
        container.read(second.path)
    storage_pool.clear()


def test_an_incomplete_bundle_is_rejected(notebook, storage_pool, monkeypatch):
    notebook.cell(f"import torch\nx = torch.ones({BIG})")
    made, _ = send(notebook, storage_pool)
    monkeypatch.setattr(container, "copy_changed", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        notebook.write(notebook.serialize())
    assert made.fd is None


@pytest.mark.parametrize("same_address", [False, True], ids=["increasing addresses", "address 0"])
def test_extents_do_not_overlap_and_are_aligned(same_address):
    draw = random.Random(1)
    layout = FileLayout(40)
    for _ in range(200):
        spans, address = [], 4096
        for _ in range(draw.randrange(8)):
            address = 0 if same_address else address + draw.randrange(1, 5) * 16
            nbytes = draw.choice([0, 3, 100, LARGE, LARGE, LARGE + 16, 3 * LARGE])
            spans.append((address, nbytes))
            address += nbytes
        extents = layout.allocate_extents(spans)
        assert [extent.nbytes for extent in extents] == [nbytes for _, nbytes in spans]
        ends = 40
        for extent in sorted(extents, key=lambda extent: (extent.start, extent.nbytes)):
            assert extent.start >= ends
            ends = extent.start + extent.nbytes
        pairs = zip(extents, spans, strict=True)
        assert all((extent.start - low) % 64 == 0 for extent, (low, size) in pairs if size)


@pytest.mark.parametrize("size", [1, 5000, (40 << 20) + 3])
def test_the_last_byte_is_compared_and_copied(size):
    a, b = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    assert same_bytes(memoryview(a), memoryview(b))
    a[-1] = 1
    assert not same_bytes(memoryview(a), memoryview(b))
    copy_changed(memoryview(b), memoryview(a))
    assert b[-1] == 1


def test_unwritten_pages_are_unmodified(tmp_path):
    path = str(tmp_path / "box")
    container.write(path, b"", b"", [(0, 50_000)], [memoryview(bytes(50_000))])
    (block,) = container.read(path).blocks
    assert is_unmodified(block)
    assert sum(block) == 0
    assert is_unmodified(block)
    block[40_000] = 1
    assert not is_unmodified(block)
    assert is_unmodified(block[:8000])


def test_storage_of_a_large_run_is_freed_by_a_small_one(notebook, storage_pool):
    notebook.cell(f"import torch\nx = torch.ones({40 * 2**20})")
    made, _ = send(notebook, storage_pool)
    notebook.cell("x = torch.ones(3)")
    small, found = send(notebook, storage_pool)
    assert small is not made
    assert made.fd is None
    assert found["x"].tolist() == [1.0] * 3


@pytest.mark.skipif(not LARGE_PAGES_WORK, reason="the system has no large pages for files")
def test_pooled_storage_is_collapsed_into_large_pages(notebook, storage_pool, monkeypatch):
    monkeypatch.setattr(NewPageWriter, "_make_large_pages", lambda self, first, end: False)
    notebook.cell(f"import torch\nx = torch.ones({16 * LARGE_PAGE})")
    made, _ = send(notebook, storage_pool)
    deadline = time.monotonic() + 30
    while bytes_in_large_pages(made.fd) < 64 * LARGE_PAGE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bytes_in_large_pages(made.fd) >= 32 * LARGE_PAGE  # the system may refuse some
    again, found = send(notebook, storage_pool)
    assert again is made
    assert found["x"].sum() == 16 * LARGE_PAGE
