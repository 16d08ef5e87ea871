"""What the system tells of written memory is all that was written, however it was written."""

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

SIZE = 4 * MIN_TRACKED_BYTES
DONTNEED, FIXED = 4, 0x10
IO_URING_SETUP = 425


def watches() -> bool:
    """Whether this system tells of anything at all."""
    fd = userfaultfd()
    if fd is None:
        return False
    os.close(fd)
    return True


needs_watching = pytest.mark.skipif(not watches(), reason="the system does not tell")


def span_of(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


@pytest.fixture
def watch():
    watch = WriteTracker()
    yield watch
    watch.close()


@pytest.fixture
def array():
    return np.ones(SIZE, np.uint8)


def spots(watch: WriteTracker, array: np.ndarray) -> list[int]:
    """Return the offsets of the pages that the watch tells of, without those it cannot watch."""
    start, nbytes = span = span_of(array)
    first, last = -start % PAGE, (start + nbytes) % PAGE
    told = watch.written([span])[span]
    return [low - start for low, size in told if size not in (first, last) or size >= PAGE]


def around(array: np.ndarray, offset: int) -> int:
    """Return the offset at which the page of byte ``offset`` begins."""
    return offset - (array.ctypes.data + offset) % PAGE


def through_the_system(array: np.ndarray) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"x")
    os.readv(ours, [memoryview(array)[SIZE // 2 : SIZE // 2 + 1]])
    os.close(ours)
    os.close(theirs)


def through_its_file(array: np.ndarray) -> None:
    fd = os.open("/proc/self/mem", os.O_WRONLY)
    os.pwrite(fd, b"x", array.ctypes.data + SIZE // 2)
    os.close(fd)


def dropped(array: np.ndarray) -> None:
    page = ctypes.c_void_p(array.ctypes.data + around(array, SIZE // 2))
    assert not ctypes.CDLL(None).madvise(page, ctypes.c_size_t(PAGE), DONTNEED)


def past_the_cache(array: np.ndarray) -> None:
    start = around(array, SIZE // 2)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * PAGE)
        file.flush()
        fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        assert os.readv(fd, [memoryview(array)[start : start + PAGE]]) == PAGE
        os.close(fd)


WRITES = {
    "an array": lambda a: a.__setitem__(SIZE // 2, 7),
    "a tensor of it": lambda a: torch.from_numpy(a)[SIZE // 2].add_(1),
    "a memoryview": lambda a: memoryview(a).__setitem__(SIZE // 2, 7),
    "ctypes": lambda a: ctypes.memset(a.ctypes.data + SIZE // 2, 7, 1),
    "the system": through_the_system,
    "its own file": through_its_file,
    "a disk": past_the_cache,
    "giving the page back": dropped,
}


@needs_watching
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_is_told_once_and_exactly(watch, array, write):
    span = span_of(array)
    assert span not in watch.written([span])  # nothing is known of what was not watched
    assert spots(watch, array) == []
    write(array)
    assert spots(watch, array) == [around(array, SIZE // 2)]
    array.sum()
    assert spots(watch, array) == []


@needs_watching
def test_the_ends_that_share_a_page_with_others_count_as_written(watch, array):
    part = array[100:-100]
    start, nbytes = span = span_of(part)
    watch.written([span])
    told = watch.written([span])[span]
    bare = set(range(start, start + nbytes)) - {b for low, n in told for b in range(low, low + n)}
    assert min(bare) % PAGE == 0
    assert (max(bare) + 1) % PAGE == 0
    assert len(bare) >= nbytes - 2 * PAGE


@needs_watching
def test_new_memory_at_an_old_address_is_not_taken_for_the_old(watch):
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 1
    watch.written([span_of(array)])
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
    assert libc.mmap(array.ctypes.data, SIZE, 3, fixed, -1, 0) == array.ctypes.data
    told = watch.written([span_of(array)])[span_of(array)]
    assert sum(nbytes for _, nbytes in told) == SIZE, "all of it is new"
    array[0] = 2
    ((low, _), *_) = watch.written([span_of(array)])[span_of(array)]
    assert low == span_of(array)[0]


@needs_watching
def test_another_watch_of_new_memory_does_not_answer_for_it(watch):
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, np.uint8)
        span = span_of(array)
        array[:] = 1
        watch.written([span])
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        new = libc.mmap(span[0], SIZE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED, -1, 0)
        assert new == span[0]
        array[:] = 2
        other = WriteTracker()
        other.written([span])
        assert watch.written([span]) == {}
        other.close()
        del array


@needs_watching
def test_what_others_can_write_to_is_not_watched(watch):
    block = shared_memory.SharedMemory(create=True, size=SIZE)
    shared = np.frombuffer(block.buf, np.uint8)
    for _ in range(2):
        assert not watch.written([span_of(shared)])
    del shared
    block.close()
    block.unlink()


@needs_watching
def test_memory_that_has_a_watch_gets_no_second_one(watch, array):
    span, other = span_of(array), WriteTracker()
    watch.written([span])
    other.written([span])
    array[SIZE // 2] = 2
    assert not other.written([span])
    assert spots(watch, array) == [around(array, SIZE // 2)]
    other.close()


def ring() -> int:
    return ctypes.CDLL(None).syscall(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))


DEVICES = {
    **{name: lambda n=name: os.open(n, os.O_RDONLY) for name in ("/dev/fuse", "/dev/kvm")},
    "io_uring": ring,
}


@needs_watching
@pytest.mark.parametrize("opened", DEVICES.values(), ids=DEVICES)
def test_nothing_is_known_where_a_device_may_write_unseen(watch, array, opened):
    span = span_of(array)
    watch.written([span])
    try:
        fd = opened()
    except OSError:
        fd = -1
    if fd < 0:
        pytest.skip("there is none here")
    assert not watch.written([span])
    os.close(fd)
    assert not watch.written([span])
    assert span in watch.written([span])


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
def test_files_behind_which_there_are_devices(line, writes):
    text = f"socket:[1]\n{line}\n/dev/null"
    assert any(kind.search(text) for kind in (DEVICE, RINGS)) is writes


@needs_watching
def test_what_is_left_is_known_no_more(watch, array):
    span = span_of(array)
    watch.written([span])
    watch.untrack(span)
    array[5] = 5
    assert not watch.written([span])
    assert span in watch.written([span])
    assert not watch.written([])
    assert not watch.written([span])


@needs_watching
def test_a_child_neither_tells_nor_takes_away(watch, array):
    span = span_of(array)
    watch.written([span])
    child = multiprocessing.get_context("fork").Process(target=lambda: array.fill(9))
    child.start()
    child.join()
    assert not child.exitcode
    array[SIZE // 2] = 2
    assert around(array, SIZE // 2) in spots(watch, array)


@needs_watching
def test_memory_is_watched_no_more_once_its_watch_is_closed_whoever_lives(notebook, child, watch):
    notebook.namespace["x"] = torch.ones(MIN_TRACKED_BYTES)
    made = notebook.write(notebook.serialize())
    child(lambda: True)
    made.close()
    span = notebook["x"].data_ptr(), notebook["x"].nbytes
    watch.written([span])
    assert span in watch.written([span]), "or it has another watch still"


def test_without_the_system_nothing_is_known(watch, array, monkeypatch):
    monkeypatch.setattr("nbmgpu.serialization.write_tracking._open_userfaultfd", lambda: None)
    for _ in range(2):
        assert not watch.written([span_of(array)])


@pytest.fixture
def storage_pool(monkeypatch):
    own = StoragePool()
    monkeypatch.setattr(bundle_module, "storage_pool", own)
    yield own
    own.clear()


@needs_watching
def test_what_was_not_written_is_not_even_compared(notebook, storage_pool, monkeypatch):
    notebook.namespace["x"] = torch.ones(8 * MIN_TRACKED_BYTES)
    compared = []
    true = container.copy_changed
    monkeypatch.setattr(
        container, "copy_changed", lambda old, new: compared.append(old.nbytes) or true(old, new)
    )
    for expected in (0, 2 * PAGE, LARGE):  # nothing to compare with, the ends, what was written
        storage_pool.release("bundle", notebook.write(notebook.serialize()))
        assert sum(compared) <= expected
        compared.clear()
        notebook["x"].numpy()[MIN_TRACKED_BYTES] = 3
    notebook.mgpu("x += 1")
    assert notebook["x"][MIN_TRACKED_BYTES] == 4
    assert notebook["x"][0] == 2


@needs_watching
def test_what_the_notebook_writes_again_and_again_is_not_watched(notebook, storage_pool):
    x = notebook.namespace["x"] = torch.ones(8 * MIN_TRACKED_BYTES)
    span = x.data_ptr(), x.nbytes
    made, known = None, []
    for change in (lambda: None, lambda: x.add_(1), lambda: x.add_(1), lambda: None):
        change()
        made = notebook.write(notebook.serialize())
        namespace = {"__name__": "__main__"}
        bundle_module.load_bundle(made.path, namespace, "cpu")
        assert torch.equal(namespace["x"], x)
        known.append(span in made.tracker._spans)
        storage_pool.release("bundle", made)
    assert known == [True, False, False, True]


def test_ranks_find_the_notebook_whatever_is_written_and_freed(notebook, storage_pool):
    draw = random.Random(2)
    sizes = [
        LARGE,
        MIN_TRACKED_BYTES,
        MIN_TRACKED_BYTES + 4,
        3 * MIN_TRACKED_BYTES,
    ]  # in floats: from watched to large
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
