"""Write tracking reports all written memory, however it was written."""

import ctypes
import mmap
import multiprocessing
import os
import random
import tempfile
from multiprocessing import shared_memory

import numpy as np
import pytest
import torch

from nbmgpu.serialization import bundle as bundle_module
from nbmgpu.serialization import container
from nbmgpu.serialization.file_layout import LARGE
from nbmgpu.serialization.storage import StoragePool
from nbmgpu.serialization.write_tracking import DEVICE, MIN_TRACKED_BYTES, PAGE, RINGS, WriteTracker
from nbmgpu.serialization.write_tracking import _open_userfaultfd as userfaultfd

SIZE = 10 * MIN_TRACKED_BYTES  # more than malloc ever takes from the heap, 32 MiB
DONTNEED, FIXED = 4, 0x10
IO_URING_SETUP = 425


def tracking_works() -> bool:
    """Return whether this system supports write tracking."""
    fd = userfaultfd()
    if fd is None:
        return False
    os.close(fd)
    return True


needs_tracking = pytest.mark.skipif(
    not tracking_works(), reason="the system does not support userfaultfd"
)


def span_of(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


@pytest.fixture
def tracker():
    tracker = WriteTracker()
    yield tracker
    tracker.close()


@pytest.fixture
def array():
    return np.ones(SIZE, np.uint8)


def written_offsets(tracker: WriteTracker, array: np.ndarray) -> list[int]:
    """Return the offsets of written pages, without the pages at the ends, which are not tracked."""
    start, nbytes = span = span_of(array)
    first, last = -start % PAGE, (start + nbytes) % PAGE
    reported = tracker.written([span])[span]
    return [low - start for low, size in reported if size not in (first, last) or size >= PAGE]


def page_offset(array: np.ndarray, offset: int) -> int:
    """Return the offset at which the page of byte ``offset`` begins."""
    return offset - (array.ctypes.data + offset) % PAGE


def write_by_readv(array: np.ndarray) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")
    os.readv(read_end, [memoryview(array)[SIZE // 2 : SIZE // 2 + 1]])
    os.close(read_end)
    os.close(write_end)


def write_to_proc_mem(array: np.ndarray) -> None:
    fd = os.open("/proc/self/mem", os.O_WRONLY)
    os.pwrite(fd, b"x", array.ctypes.data + SIZE // 2)
    os.close(fd)


def drop_page(array: np.ndarray) -> None:
    page = ctypes.c_void_p(array.ctypes.data + page_offset(array, SIZE // 2))
    assert not ctypes.CDLL(None).madvise(page, ctypes.c_size_t(PAGE), DONTNEED)


def write_by_direct_io(array: np.ndarray) -> None:
    start = page_offset(array, SIZE // 2)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * PAGE)
        file.flush()
        fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        assert os.readv(fd, [memoryview(array)[start : start + PAGE]]) == PAGE
        os.close(fd)


WRITES = {
    "ndarray": lambda a: a.__setitem__(SIZE // 2, 7),
    "tensor": lambda a: torch.from_numpy(a)[SIZE // 2].add_(1),
    "memoryview": lambda a: memoryview(a).__setitem__(SIZE // 2, 7),
    "ctypes": lambda a: ctypes.memset(a.ctypes.data + SIZE // 2, 7, 1),
    "readv": write_by_readv,
    "/proc/self/mem": write_to_proc_mem,
    "O_DIRECT": write_by_direct_io,
    "MADV_DONTNEED": drop_page,
}


@needs_tracking
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_is_reported_once_and_exactly(tracker, array, write):
    span = span_of(array)
    assert span not in tracker.written([span])  # not tracked before
    assert written_offsets(tracker, array) == []
    write(array)
    assert written_offsets(tracker, array) == [page_offset(array, SIZE // 2)]
    array.sum()
    assert written_offsets(tracker, array) == []


@needs_tracking
def test_partial_pages_at_the_ends_count_as_written(tracker, array):
    part = array[100:-100]
    start, nbytes = span = span_of(part)
    tracker.written([span])
    reported = tracker.written([span])[span]
    unwritten = set(range(start, start + nbytes)) - {
        b for low, n in reported for b in range(low, low + n)
    }
    assert min(unwritten) % PAGE == 0
    assert (max(unwritten) + 1) % PAGE == 0
    assert len(unwritten) >= nbytes - 2 * PAGE


@needs_tracking
def test_new_memory_at_an_old_address_counts_as_written(tracker):
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 1
    tracker.written([span_of(array)])
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
    assert libc.mmap(array.ctypes.data, SIZE, 3, fixed, -1, 0) == array.ctypes.data
    reported = tracker.written([span_of(array)])[span_of(array)]
    assert sum(nbytes for _, nbytes in reported) == SIZE, "all pages are new"
    array[0] = 2
    ((low, _), *_) = tracker.written([span_of(array)])[span_of(array)]
    assert low == span_of(array)[0]


@needs_tracking
def test_another_tracker_of_new_memory_is_independent(tracker):
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, np.uint8)
        span = span_of(array)
        array[:] = 1
        tracker.written([span])
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        new = libc.mmap(span[0], SIZE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED, -1, 0)
        assert new == span[0]
        array[:] = 2
        other = WriteTracker()
        other.written([span])
        assert tracker.written([span]) == {}
        other.close()
        del array


@needs_tracking
def test_shared_memory_is_not_tracked(tracker):
    block = shared_memory.SharedMemory(create=True, size=SIZE)
    shared = np.frombuffer(block.buf, np.uint8)
    for _ in range(2):
        assert not tracker.written([span_of(shared)])
    del shared
    block.close()
    block.unlink()


@needs_tracking
def test_memory_has_only_one_tracker(tracker, array):
    span, other = span_of(array), WriteTracker()
    tracker.written([span])
    other.written([span])
    array[SIZE // 2] = 2
    assert not other.written([span])
    assert written_offsets(tracker, array) == [page_offset(array, SIZE // 2)]
    other.close()


def io_uring() -> int:
    return ctypes.CDLL(None).syscall(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))


DEVICES = {
    **{name: lambda n=name: os.open(n, os.O_RDONLY) for name in ("/dev/fuse", "/dev/kvm")},
    "io_uring": io_uring,
}


@needs_tracking
@pytest.mark.parametrize("open_device", DEVICES.values(), ids=DEVICES)
def test_nothing_is_reported_if_a_device_may_write(tracker, array, open_device):
    span = span_of(array)
    tracker.written([span])
    try:
        fd = open_device()
    except OSError:
        fd = -1
    if fd < 0:
        pytest.skip("the device does not exist")
    assert not tracker.written([span])
    os.close(fd)
    assert not tracker.written([span])
    assert span in tracker.written([span])


@pytest.mark.parametrize(
    ("line", "writes"),
    {
        "/dev/nvidia-uvm": True,
        "/dev/infiniband/uverbs0": True,
        "/dev/nullb0": True,
        "7f0-7f1 rw-s 0 00:05 51                /dev/dri/renderD128": True,
        "7f0-7f1 rw-s 0 00:05 52                /dev/zero (deleted)": False,
        "7f0-7f1 rw-p 0 00:12 53                /[aio] (deleted)": True,
        "/dev/shm/torch_1_2_3 (deleted)": False,
        "/dev/pts/0": False,
        "/dev/urandom": False,
        "/home/me/dev/driver.py": False,
        "anon_inode:[eventpoll]": False,
    }.items(),
)
def test_device_files_are_recognized(line, writes):
    text = f"socket:[1]\n{line}\n/dev/null"
    assert any(kind.search(text) for kind in (DEVICE, RINGS)) is writes


@needs_tracking
def test_untracked_memory_is_not_reported(tracker, array):
    span = span_of(array)
    tracker.written([span])
    tracker.untrack(span)
    array[5] = 5
    assert not tracker.written([span])
    assert span in tracker.written([span])
    assert not tracker.written([])
    assert not tracker.written([span])


@needs_tracking
def test_a_child_process_does_not_affect_the_tracker(tracker, array):
    span = span_of(array)
    tracker.written([span])
    child = multiprocessing.get_context("fork").Process(target=lambda: array.fill(9))
    child.start()
    child.join()
    assert not child.exitcode
    array[SIZE // 2] = 2
    assert page_offset(array, SIZE // 2) in written_offsets(tracker, array)


@needs_tracking
def test_closing_the_tracker_ends_tracking_while_a_child_is_alive(notebook, child, tracker):
    notebook.namespace["x"] = torch.ones(MIN_TRACKED_BYTES)
    made = notebook.write(notebook.serialize())
    child(lambda: True)
    made.close()
    span = notebook["x"].data_ptr(), notebook["x"].nbytes
    tracker.written([span])
    assert span in tracker.written([span]), "still registered with the closed tracker"


def test_without_userfaultfd_nothing_is_reported(tracker, array, monkeypatch):
    monkeypatch.setattr("nbmgpu.serialization.write_tracking._open_userfaultfd", lambda: None)
    for _ in range(2):
        assert not tracker.written([span_of(array)])


@pytest.fixture
def storage_pool(monkeypatch):
    pool = StoragePool()
    monkeypatch.setattr(bundle_module, "storage_pool", pool)
    yield pool
    pool.clear()


@needs_tracking
def test_unwritten_memory_is_not_compared(notebook, storage_pool, monkeypatch):
    notebook.namespace["x"] = torch.ones(8 * MIN_TRACKED_BYTES)
    compared = []
    original = container.copy_changed
    monkeypatch.setattr(
        container,
        "copy_changed",
        lambda old, new: compared.append(old.nbytes) or original(old, new),
    )
    for expected in (0, 2 * PAGE, LARGE):  # first run, then the ends, then the written block
        storage_pool.release("bundle", notebook.write(notebook.serialize()))
        assert sum(compared) <= expected
        compared.clear()
        notebook["x"].numpy()[MIN_TRACKED_BYTES] = 3
    notebook.mgpu("x += 1")
    assert notebook["x"][MIN_TRACKED_BYTES] == 4
    assert notebook["x"][0] == 2


@needs_tracking
def test_repeatedly_written_memory_is_not_tracked(notebook, storage_pool):
    x = notebook.namespace["x"] = torch.ones(8 * MIN_TRACKED_BYTES)
    span = x.data_ptr(), x.nbytes
    made, tracked = None, []
    for change in (lambda: None, lambda: x.add_(1), lambda: x.add_(1), lambda: None):
        change()
        made = notebook.write(notebook.serialize())
        namespace = {"__name__": "__main__"}
        bundle_module.load_bundle(made.path, namespace, "cpu")
        assert torch.equal(namespace["x"], x)
        tracked.append(span in made.tracker._spans)
        storage_pool.release("bundle", made)
    assert tracked == [True, False, False, True]


def test_ranks_get_the_notebooks_values_after_random_writes_and_frees(notebook, storage_pool):
    draw = random.Random(2)
    sizes = [
        LARGE,
        MIN_TRACKED_BYTES,
        MIN_TRACKED_BYTES + 4,
        3 * MIN_TRACKED_BYTES,
    ]  # in bytes: from tracked to large
    for _ in range(60):
        for name in "uvwxyz":
            kind = draw.choice(["new", "one", "all", "numpy", "view", "drop", *["same"] * 4])
            tensor = notebook.namespace.get(name)
            if kind == "new":
                notebook.namespace[name] = torch.rand(draw.choice(sizes) // 4)
            elif kind == "drop":
                notebook.namespace.pop(name, None)
            elif tensor is None:
                continue
            elif kind == "one":
                tensor[draw.randrange(len(tensor))] += 1
            elif kind == "all":
                tensor.mul_(1.5)
            elif kind == "numpy":
                tensor.numpy()[:: draw.choice([7, 1000, 100_000])] = draw.random()
            elif kind == "view":
                notebook.namespace[name] = tensor[draw.randrange(3) : len(tensor) - 1]
        made = notebook.write(notebook.serialize())
        namespace = {"__name__": "__main__"}
        bundle_module.load_bundle(made.path, namespace, "cpu")
        for name in "uvwxyz":
            assert (name in namespace) == (name in notebook.namespace)
            if name in namespace:
                assert torch.equal(namespace[name], notebook[name])
        storage_pool.release("bundle", made)
