"""Mapped files have the right bytes with and without large pages."""

import gc
import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from large_pages import LARGE_PAGES_WORK, bytes_in_large_pages

from nbmgpu.serialization import container, file_mapping
from nbmgpu.serialization.file_mapping import PRIVATE, SHARED, FileMap, NewPageWriter
from nbmgpu.system.procfs import LARGE_PAGE

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create is Linux's")


@pytest.fixture
def fd():
    made = os.memfd_create("test")
    os.fchmod(made, 0o600)  # as the storage does, and readers check
    yield made
    os.close(made)


def address(view):
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


@linux
@pytest.mark.parametrize("nbytes", [1, 5000, LARGE_PAGE, LARGE_PAGE + 1, 5 * LARGE_PAGE + 12345])
@pytest.mark.parametrize("access", [PRIVATE, SHARED])
def test_a_private_mapping_does_not_write_to_the_file(fd, nbytes, access):
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    os.pwrite(fd, data.tobytes(), 0)
    one, other = FileMap(fd, nbytes, access), FileMap(fd, nbytes, access)
    assert one.view.nbytes == nbytes
    assert one.view == memoryview(data)
    assert nbytes < LARGE_PAGE or address(one.view) % LARGE_PAGE == 0
    one.view[-1] ^= 0xFF
    seen = other.view[-1], os.pread(fd, 1, nbytes - 1)[0]
    assert seen == (2 * (data[-1],) if access == PRIVATE else 2 * (data[-1] ^ 0xFF,))


@linux
def test_a_mapping_lives_as_long_as_its_views(fd):
    def mapped():
        return Path("/proc/self/maps").read_text().count("memfd:test")

    os.ftruncate(fd, 3 * LARGE_PAGE)
    view = FileMap(fd, 3 * LARGE_PAGE, PRIVATE).view[5:50]
    gc.collect()
    assert mapped() == 1
    assert bytes(view) == bytes(45)
    del view
    gc.collect()
    assert mapped() == 0


@linux
def test_an_empty_file_cannot_be_mapped(fd):
    with pytest.raises((OSError, ValueError)):
        FileMap(fd, 10, PRIVATE)


SPANS = [0, 64, 3 * MIB, 3 * MIB + 64, 20 * MIB + 7, 20 * MIB + 8, 27 * MIB]


@linux
@pytest.mark.parametrize("refused", ["never", "always", "after two calls", "too slow"])
@pytest.mark.parametrize("before", [0, 5000, 4 * MIB + 5])
def test_writes_are_correct_if_large_pages_are_refused(fd, monkeypatch, refused, before):
    data = np.random.default_rng(1).integers(1, 256, SPANS[-1], np.uint8)
    os.pwrite(fd, data[:before].tobytes(), 0)
    os.ftruncate(fd, SPANS[-1] + 100)
    calls = []

    def make_large(self, first, end):
        calls.append((first, end))
        if refused == "always" or (refused == "after two calls" and len(calls) > 2):
            raise OSError("refused")
        original(self, first, end)

    original = FileMap.make_large_pages
    monkeypatch.setattr(FileMap, "make_large_pages", make_large)
    monkeypatch.setattr(file_mapping, "EXTRA_SECONDS", -1 if refused == "too slow" else 1000)
    new = NewPageWriter(fd, FileMap(fd, SPANS[-1] + 100, SHARED), before, SPANS[-1])
    for start, end in itertools.pairwise(SPANS):
        if start >= before:
            new.write(start, memoryview(data[start:end]))
        else:  # existing pages are overwritten, as the container does
            os.pwrite(fd, data[start:end].tobytes(), start)
    assert os.pread(fd, SPANS[-1], 0) == data.tobytes()
    if refused == "never" and LARGE_PAGES_WORK:
        assert all(first >= before for first, _ in calls)
        made = [page for first, end in sorted(calls) for page in range(first, end, LARGE_PAGE)]
        begin = next(start for start in SPANS if start >= before)
        assert made == [*range(-(-begin // LARGE_PAGE) * LARGE_PAGE, 26 * MIB, LARGE_PAGE)]


@pytest.mark.skipif(not LARGE_PAGES_WORK, reason="the system has no large pages for files")
def test_a_container_in_memory_is_mapped_in_large_pages(fd):
    data = np.ones(8 * MIB, np.uint8)
    path = f"/proc/self/fd/{fd}"
    container.write(path, b"stream", b"", [(0, data.nbytes)], [memoryview(data)])
    box = container.read(path)
    assert sum(box.blocks[0]) == data.nbytes
    assert bytes_in_large_pages(fd) >= 3 * LARGE_PAGE


def test_a_container_on_disk_can_be_read(tmp_path):
    data = np.ones(8 * MIB, np.uint8)
    path = str(tmp_path / "box")
    container.write(path, b"stream", b"", [(0, data.nbytes)], [memoryview(data)])
    assert sum(container.read(path).blocks[0]) == data.nbytes


@pytest.mark.skipif(not LARGE_PAGES_WORK, reason="the system has no large pages for files")
def test_small_pages_are_collapsed_one_at_a_time(fd):
    data = np.random.default_rng(0).integers(0, 256, 8 * LARGE_PAGE + 5, np.uint8)
    os.pwrite(fd, data.tobytes(), 0)
    mapped = FileMap(fd, data.nbytes, SHARED)
    for _ in range(3):
        assert mapped.collapse_next_page() > 0
    assert mapped.view == memoryview(data)
    assert bytes_in_large_pages(fd) == 3 * LARGE_PAGE
    while mapped.collapse_next_page():
        pass
    assert mapped.view == memoryview(data)
    assert bytes_in_large_pages(fd) == 8 * LARGE_PAGE
