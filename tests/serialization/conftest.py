"""Fixtures for serialization tests."""

import os
import sys
import types

import pytest
from round_trip import Notebook

from nbmgpu.serialization.storage import StoragePool


@pytest.fixture
def notebook(tmp_path):
    """An empty notebook."""
    # Classes of the notebook belong to __main__; pytest's module is restored afterwards.
    before = sys.modules["__main__"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    book = Notebook(tmp_path, main.__dict__)
    yield book
    sys.modules["__main__"] = before
    for storage in book.storages:
        storage.close()


@pytest.fixture(params=["tracked", "compared"])
def storage_pool(monkeypatch, request):
    """A new pool, used by bundles; with and without write tracking."""
    if request.param == "compared":
        monkeypatch.setattr("nbmgpu.serialization.write_tracking._open_userfaultfd", lambda: None)
    pool = StoragePool()
    monkeypatch.setattr("nbmgpu.serialization.bundle.storage_pool", pool)
    yield pool
    pool.clear()


@pytest.fixture
def child():
    """Fork a process, assert a condition in it, and keep it alive until the test ends."""
    ours, theirs = os.pipe()
    pids = []

    def fork(condition):
        read_end, write_end = os.pipe()
        pids.append(os.fork())
        if not pids[-1]:
            os.close(theirs)
            os.write(write_end, bytes([condition()]))
            os.read(ours, 1)
            os._exit(0)
        assert os.read(read_end, 1) == b"\1"
        os.close(read_end)
        os.close(write_end)

    yield fork
    os.close(theirs)
    os.close(ours)
    for pid in pids:
        os.waitpid(pid, 0)
