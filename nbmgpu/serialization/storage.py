"""Where containers are kept: anonymous memory, or a file when that does not fit."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from nbmgpu.errors import LaunchError, format_message
from nbmgpu.system.limits import available_memory
from nbmgpu.system.procfs import LARGE_PAGE

from .container import HEADER, MAGIC
from .file_layout import FileLayout
from .write_tracking import WriteTracker

RESERVED_BYTES = 256 * 2**20
"""Bytes of memory left free before a bundle goes to disk instead."""

MAX_POOLED_FRACTION = 0.25
"""The largest part of memory that all that is kept for the next run may take: of what is free, and
of what is kept itself."""

MAX_OVERSIZE_FACTOR, MAX_OVERSIZE_BYTES = 2, 64 * 2**20
"""A kept storage is freed if it has more than ``MAX_OVERSIZE_FACTOR * size + MAX_OVERSIZE_BYTES`` bytes for a run of ``size``."""

COLLAPSE_DELAY = 0.1
"""Seconds after a run in which nothing is done with what is kept: the next one may come at once."""


@dataclass(eq=False)
class Storage:
    """Where a container is kept: anonymous memory, or a file in the run's folder.

    Anonymous memory (``memfd_create``) has no name, so nothing can be left in
    ``/dev/shm``, and a small ``/dev/shm`` (64 MB in Docker) is no limit.  Other
    processes of the same user open it through ``path``.  ``layout`` and ``tracker`` are
    for who writes it again: what it has, and what of that has changed in this process.
    """

    path: str
    fd: int | None = None
    notice: str = ""
    layout: FileLayout = field(default_factory=lambda: FileLayout(HEADER.size))
    tracker: WriteTracker = field(default_factory=WriteTracker)
    _is_file: bool = field(init=False)

    def __post_init__(self) -> None:
        """Know what is to be freed, for what is closed twice."""
        self._is_file = self.fd is None
        _storages_alive.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes; 0 for a file on the disk."""
        return 0 if self.fd is None else os.fstat(self.fd).st_size

    @property
    def is_complete(self) -> bool:
        """Whether a container lies there in memory, and as it was written."""
        return self.fd is not None and os.pread(self.fd, len(MAGIC), 0) == MAGIC

    def clear_header(self) -> None:
        """Take the mark off that a is_complete container has; its bytes stay."""
        if self.fd is not None:
            os.pwrite(self.fd, bytes(HEADER.size), 0)

    def close(self) -> None:
        """Free the memory, or remove the file."""
        self.tracker.close()
        self.layout.forget()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        elif self._is_file:
            Path(self.path).unlink(missing_ok=True)

    def close_in_child(self) -> None:
        """Let go of it in a forked process: what this one would do to it, it does to its parent's.

        The parent's memory is watched as long as anybody has the tracker open.
        """
        self._is_file = False
        self.close()


_storages_alive: weakref.WeakSet[Storage] = weakref.WeakSet()
"""All that this process has made, for the moment in which it is forked."""


def allocate_storage(folder: Path, name: str, size: int) -> Storage:
    """Return a storage for ``size`` bytes: memory when it fits, else a file in ``folder``.

    Raises:
        LaunchError: neither memory nor the disk has room.
    """
    room = available_memory() - RESERVED_BYTES
    if hasattr(os, "memfd_create") and size <= room:
        fd = os.memfd_create(f"nbmgpu-{name}")
        return Storage(f"/proc/{os.getpid()}/fd/{fd}", fd)
    folder.mkdir(parents=True, exist_ok=True)
    free = psutil.disk_usage(str(folder)).free
    if size > free:
        raise LaunchError(
            format_message(
                f"The cell's data needs {size / 2**30:.1f} GiB",
                f"There is {max(room, 0) / 2**30:.1f} GiB of memory and "
                f"{free / 2**30:.1f} GiB on disk at {folder}",
                "set NBMGPU_RUNS to a folder with room, or read less in the cell",
            )
        )
    notice = (
        f"The data ({size / 2**30:.2f} GiB) does not fit the memory that is free "
        f"({max(room, 0) / 2**30:.2f} GiB): it goes through the disk, which is slower."
    )
    path = folder / name
    path.touch(mode=0o600)  # who will read it may come before it is written
    return Storage(str(path), notice=notice)


class StoragePool:
    """Keeps the memory of the last run for the next one, which writes only what differs.

    What is there already is several times faster to write than new memory.  Runs may begin
    and end in several threads.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._kept: dict[str, Storage] = {}
        self._lock = threading.Lock()

    def acquire(self, folder: Path, name: str, size: int) -> Storage:
        """Return a storage for ``size`` bytes, as ``allocate_storage`` does, the kept one if it will do.

        Raises:
            LaunchError: neither memory nor the disk has room.
        """
        with self._lock:
            kept = self._kept.pop(name, None)
        if kept is not None:
            fits = size <= available_memory() - RESERVED_BYTES  # all of it may turn out to be new
            if fits and kept.nbytes <= MAX_OVERSIZE_FACTOR * size + MAX_OVERSIZE_BYTES:
                kept.clear_header()
                return kept
            kept.close()
        return allocate_storage(folder, name, size)

    def release(self, name: str, storage: Storage) -> None:
        """Keep ``storage``, which nobody reads any more, or close it if that takes too much."""
        if not storage.is_complete:  # ranks may have written there
            storage.tracker.close()  # so that all of it is compared
        with self._lock:
            held = sum(kept.nbytes for kept in self._kept.values())
            nbytes = storage.nbytes
            fits = 0 < nbytes <= MAX_POOLED_FRACTION * (available_memory() + held + nbytes) - held
            keep = fits and name not in self._kept
            if keep:
                self._kept[name] = storage
        if keep:
            self._collapse_pages(name, storage, nbytes)
        else:
            storage.close()

    def _collapse_pages(self, name: str, storage: Storage, nbytes: int) -> None:
        """Make large pages of ``storage`` while it lies here: the next ranks read them at once.

        Where memory was scarce, or a virtual machine had to get it first, the run that wrote
        them did not wait for that.  Half of the time is rest.
        """

        def collapse_next_page() -> None:
            took = COLLAPSE_DELAY
            while took:
                time.sleep(took)
                took = (
                    storage.layout.collapse_next_page() if self._kept.get(name) is storage else 0.0
                )

        if nbytes >= LARGE_PAGE:
            with suppress(RuntimeError):  # no thread is to be had
                threading.Thread(
                    target=collapse_next_page, name="nbmgpu-pages", daemon=True
                ).start()

    def clear(self) -> None:
        """Free what is kept."""
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].close()

    def reset_in_child(self) -> None:
        """Keep nothing, in a forked process where another thread may have had the lock."""
        self._lock, self._kept = threading.Lock(), {}


storage_pool = StoragePool()
"""This process's."""


def _reset_in_child() -> None:
    """Let go, in a forked process, of all that the parent and its ranks may be using."""
    storage_pool.reset_in_child()
    for storage in list(_storages_alive):
        storage.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
