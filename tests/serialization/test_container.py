"""The container format and its storage: sharing between ranks, errors and cleanup."""

import gc
import os
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nbmgpu.errors import LaunchError
from nbmgpu.serialization import UnreadableError, container, load_bundle, restore_result, storage
from nbmgpu.serialization.storage import allocate_storage


def proportional_set_size(pid):
    """Return the proportional set size of a process in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


class TestFormat:
    def test_keeps_stream_table_and_aligned_blocks(self, tmp_path):
        path = str(tmp_path / "box")
        blocks = [memoryview(b"a" * 100), memoryview(b""), memoryview(b"b" * 3)]
        spans = [(1024 + 16, 100), (7, 0), (64, 3)]
        container.write(path, b"stream", b"table", spans, blocks)
        box = container.read(path)
        assert bytes(box.stream) == b"stream"
        assert bytes(box.table) == b"table"
        assert [bytes(block) for block in box.blocks] == [bytes(block) for block in blocks]
        _, index, _, _, count, _ = container.HEADER.unpack_from(Path(path).read_bytes())
        starts = [
            container.ENTRY.unpack_from(Path(path).read_bytes(), index + 16 * i)[0]
            for i in range(count)
        ]
        assert starts[0] % 64 == 16
        assert starts[2] % 64 == 0

    @pytest.mark.parametrize(
        "data", [b"", b"x", b"garbage" * 100, bytes(5000), container.MAGIC, container.MAGIC * 40]
    )
    def test_other_data_are_rejected(self, tmp_path, data):
        (tmp_path / "box").write_bytes(data)
        with pytest.raises(ValueError, match="box"):
            container.read(str(tmp_path / "box"))

    def test_truncated_containers_are_rejected(self, tmp_path):
        path = tmp_path / "box"
        container.write(str(path), b"s" * 50, b"t" * 50, [(0, 500)], [memoryview(bytes(500))])
        whole = path.read_bytes()
        for length in range(0, len(whole), 7):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match="box"):
                container.read(str(path))

    def test_an_interrupted_write_is_incomplete(self, notebook):
        notebook.cell("import torch\nx = torch.ones(1000)")
        bundle = notebook.serialize()
        rank = notebook.start(notebook.write(bundle), "import os; os._exit(9)")
        with pytest.raises(EOFError):
            rank.wait()
        with pytest.raises(ValueError, match="empty"):
            restore_result(rank.result.path, bundle)

        def interrupted(*args):
            yield memoryview(bytes(100))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            container.write(rank.result.path, b"s", b"t", [(0, 100), (0, 100)], interrupted())
        with pytest.raises(ValueError, match="incomplete"):
            restore_result(rank.result.path, bundle)


class TestStorage:
    def test_memory_is_freed_on_close(self, tmp_path):
        shm = set(os.listdir("/dev/shm"))
        fds = len(os.listdir("/proc/self/fd"))
        made = allocate_storage(tmp_path, "bundle", 1000)
        assert made.fd is not None
        assert made.notice == ""
        container.write(made.path, b"stream", b"table", [], [])
        assert bytes(container.read(made.path).stream) == b"stream"
        assert set(os.listdir("/dev/shm")) == shm
        made.close()
        made.close()
        assert len(os.listdir("/proc/self/fd")) == fds
        assert list(tmp_path.iterdir()) == []

    def test_the_disk_is_used_if_memory_is_low(self, notebook, monkeypatch):
        monkeypatch.setattr(storage, "available_memory", lambda: 300 * 2**20)
        notebook.cell("import torch\nX = torch.ones(20_000_000)")
        bundle = notebook.serialize()
        made = notebook.write(bundle)
        assert made.fd is None
        assert "disk" in made.notice
        assert "0.07 GiB" in made.notice
        rank = notebook.start(made, "s = X.sum().item(); X[0] = 5")
        rank.wait()
        assert restore_result(rank.result.path, bundle).values["s"] == 2e7
        assert notebook["X"][0] == 5
        made.close()
        assert not Path(made.path).exists()

    def test_an_error_is_raised_if_neither_memory_nor_disk_suffice(self, tmp_path, monkeypatch):
        monkeypatch.setattr(storage, "available_memory", lambda: 0)
        with pytest.raises(LaunchError, match=r"(?s)needs 1048576.0 GiB.*NBMGPU_RUNS"):
            allocate_storage(tmp_path, "bundle", 2**50)

    def test_a_full_disk_frees_the_storage(self, notebook, monkeypatch):
        notebook.cell("x = 1")
        gc.collect()  # what other tests have left would be freed meanwhile
        fds = len(os.listdir("/proc/self/fd"))

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(container, "write", full)
        with pytest.raises(OSError, match="No space"):
            notebook.write(notebook.serialize())
        assert len(os.listdir("/proc/self/fd")) == fds


class TestSharing:
    def test_three_ranks_share_pages_until_they_write(self, notebook):
        size = 200 * 2**20
        flags = [notebook.folder / str(i) for i in range(3)]
        notebook.is_exclusive = False
        notebook.cell(f"import torch\nX = torch.ones({size // 4}); first = X[:10]")
        bundle = notebook.serialize()
        bundle_storage = notebook.write(bundle)
        cell = """
import os, time
s = X.sum().item()
assert s == {n}, s
if {i}: X[{i}] = -{i}
seen = X[:4].tolist()
open({flag!r}, "w").close()
while not os.path.exists({go!r}): time.sleep(0.01)
"""
        go = str(notebook.folder / "go")
        ranks = [
            notebook.start(bundle_storage, cell.format(n=size // 4, i=i, flag=str(flags[i]), go=go))
            for i in range(3)
        ]
        while not all(flag.exists() for flag in flags):
            time.sleep(0.02)
        pss = [proportional_set_size(rank.process.pid) for rank in ranks]
        Path(go).touch()
        for rank in ranks:
            rank.wait()
        # One copy of the data, and three Python processes with torch.
        print(f"PSS of three ranks: {[nbytes >> 20 for nbytes in pss]} MiB")
        assert sum(pss) < size * 1.3 + 3 * 150 * 2**20
        sizes = [os.stat(rank.result.path).st_size for rank in ranks]
        assert sizes[0] < 10_000
        assert sizes[1] > size
        seen = [restore_result(rank.result.path, bundle).values["seen"] for rank in ranks]
        assert seen == [[1, 1, 1, 1], [1, -1, 1, 1], [1, 1, -2, 1]]

    def test_results_keep_no_file_mapped(self, notebook):
        notebook.cell("import torch, numpy as np\nx = torch.zeros(10)")
        fds = len(os.listdir("/proc/self/fd"))
        maps = Path("/proc/self/maps").read_text().count("nbmgpu")
        notebook.mgpu("y = torch.ones(100_000); n = np.ones(1000); x += 1")
        for made in notebook.storages:
            made.close()
        assert notebook["y"].sum() == 100_000
        assert notebook["n"].sum() == 1000
        assert Path("/proc/self/maps").read_text().count("nbmgpu") == maps
        assert len(os.listdir("/proc/self/fd")) <= fds

    def test_memory_resized_during_the_run_is_not_written(self, notebook):
        notebook.cell("import torch\nx = torch.zeros(1000)")
        bundle = notebook.serialize()
        rank = notebook.start(notebook.write(bundle), "x += 1")
        rank.wait()
        notebook.cell("x.resize_(1_000_000)")  # while the cell ran in the background
        with pytest.raises(UnreadableError, match="resized"):
            restore_result(rank.result.path, bundle)

    def test_an_unreadable_result_changes_nothing(self, notebook):
        notebook.cell("import torch\na, b = torch.zeros(2_000_000), torch.zeros(2_000_000)")
        bundle = notebook.serialize()
        rank = notebook.start(notebook.write(bundle), "a += 1; b += 1")
        rank.wait()
        first, last = sorted((notebook["a"], notebook["b"]), key=lambda t: t.data_ptr())
        last.resize_(20_000_000)
        with pytest.raises(UnreadableError):
            restore_result(rank.result.path, bundle)
        assert first.sum() == 0


def test_the_header_has_the_documented_size():
    assert struct.calcsize("<8sQQQQ32s") == container.HEADER.size


def test_a_reader_waits_until_the_container_is_complete(tmp_path):
    path = tmp_path / "bundle"
    path.touch()
    block = np.arange(2**20, dtype=np.uint8)
    seen = []

    def blocks():
        time.sleep(0.2)
        seen.append(reader.is_alive())
        yield memoryview(block)

    reader = threading.Thread(target=container.wait_until_complete, args=(str(path),))
    reader.start()
    container.write(str(path), b"stream", b"table", [(0, block.nbytes)], blocks())
    reader.join(5)
    assert seen == [True]
    assert not reader.is_alive()
    assert bytes(container.read(str(path)).blocks[0]) == block.tobytes()


def test_memory_reused_by_another_run_is_not_read(notebook, tmp_path):
    notebook.cell("x = 5")
    made = notebook.serialize().allocate(tmp_path)
    notebook.serialize().write(made, "the later run")
    namespace = {"__name__": "__main__"}
    with pytest.raises(ValueError, match="another run"):
        load_bundle(made.path, namespace, "cpu", "the earlier run")
    assert "x" not in namespace
    load_bundle(made.path, namespace, "cpu", "the later run")
    assert namespace["x"] == 5
    made.close()
