"""Storage for containers: anonymous memory, or a file if memory is short."""

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
"""Bytes of memory to leave free; if that is not possible, bundles go to disk."""

MAX_POOLED_FRACTION = 0.25
"""Largest fraction of memory that the pool may keep for the next run.

It refers to free memory plus what the pool keeps itself.
"""

MAX_OVERSIZE_FACTOR, MAX_OVERSIZE_BYTES = 2, 64 * 2**20
"""Limits of what a pooled storage may exceed the requested size by.

A storage of more than ``MAX_OVERSIZE_FACTOR * size + MAX_OVERSIZE_BYTES`` bytes is freed.
"""

COLLAPSE_DELAY = 0.1
"""Seconds after a run before pages are collapsed, as the next run may start at once."""


@dataclass(eq=False)
class Storage:
    """Storage for one container: anonymous memory, or a file in the run's folder.

    Anonymous memory (``memfd_create``) has no name, so nothing can be left in ``/dev/shm``, and a
    small ``/dev/shm`` (64 MB in Docker) is no limit.  Other processes of the same user open it by
    ``path``.

    Attributes:
        path: the file, or the file descriptor in ``/proc``.
        fd: the file descriptor of anonymous memory; None for a file.
        notice: why it is a file, for the user.
        layout: the layout of the container that it has, for the next one.
        tracker: tracks which memory of this process has changed since the container was written.
    """

    path: str
    fd: int | None = None
    notice: str = ""
    layout: FileLayout = field(default_factory=lambda: FileLayout(HEADER.size))
    tracker: WriteTracker = field(default_factory=WriteTracker)
    _is_file: bool = field(init=False)

    def __post_init__(self) -> None:
        """Register the storage, which may be closed more than once."""
        self._is_file = self.fd is None
        _storages_alive.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it occupies; 0 for a file on disk."""
        return 0 if self.fd is None else os.fstat(self.fd).st_size

    @property
    def is_complete(self) -> bool:
        """Whether it is in memory and has a complete container that was not rewritten."""
        return self.fd is not None and os.pread(self.fd, len(MAGIC), 0) == MAGIC

    def clear_header(self) -> None:
        """Mark the container as incomplete; its other bytes stay."""
        if self.fd is not None:
            os.pwrite(self.fd, bytes(HEADER.size), 0)

    def close(self) -> None:
        """Free the memory, or delete the file."""
        self.tracker.close()
        self.layout.forget()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        elif self._is_file:
            Path(self.path).unlink(missing_ok=True)

    def close_in_child(self) -> None:
        """Release it in a forked process without affecting the parent.

        The tracker must be closed, because the parent's memory is tracked as long as any process
        has the userfaultfd open.
        """
        self._is_file = False
        self.close()


_storages_alive: weakref.WeakSet[Storage] = weakref.WeakSet()
"""All storages that this process has created, to be released in a forked process."""


def allocate_storage(folder: Path, name: str, size: int) -> Storage:
    """Return storage for ``size`` bytes: memory if it is sufficient, else a file in ``folder``.

    Raises:
        LaunchError: neither memory nor the disk has enough space.
    """
    free_memory = available_memory() - RESERVED_BYTES
    if hasattr(os, "memfd_create") and size <= free_memory:
        fd = os.memfd_create(f"nbmgpu-{name}")
        os.fchmod(fd, 0o600)  # as of a file: readers check it
        return Storage(f"/proc/{os.getpid()}/fd/{fd}", fd)
    notice = (
        f"The data ({size / 2**30:.2f} GiB) does not fit into free memory "
        f"({max(free_memory, 0) / 2**30:.2f} GiB): it is written to disk, which is slower."
    )
    memory = f"{max(free_memory, 0) / 2**30:.1f} GiB of memory and "
    return allocate_file(folder, name, size, notice, memory)


def allocate_file(
    folder: Path, name: str, size: int, notice: str = "", memory: str = ""
) -> Storage:
    """Return a file in ``folder`` for ``size`` bytes; readers may open it before it is written.

    Args:
        folder: the run folder, which need not exist yet.
        name: of the file.
        size: bytes that there must be room for.
        notice: why it is a file, for the user.
        memory: what an error says of memory.

    Raises:
        LaunchError: the disk has too little space.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    free_disk = psutil.disk_usage(str(folder)).free
    if size > free_disk:
        raise LaunchError(
            format_message(
                f"The cell's data needs {size / 2**30:.1f} GiB",
                f"There is {memory}{free_disk / 2**30:.1f} GiB on disk at {folder}",
                "set NBMGPU_RUNS to a folder with enough space, or read less in the cell",
            )
        )
    path = folder / name
    path.touch(mode=0o600)
    return Storage(str(path), notice=notice)


class StoragePool:
    """Keeps the memory of the last run for the next one, which writes only what differs.

    Existing memory is written several times faster than new memory.  The pool is thread-safe.
    """

    def __init__(self) -> None:
        """Create an empty pool."""
        self._kept: dict[str, Storage] = {}
        self._lock = threading.Lock()

    def acquire(self, folder: Path, name: str, size: int) -> Storage:
        """Return storage for ``size`` bytes: the pooled one if it is suitable, else a new one.

        Raises:
            LaunchError: neither memory nor the disk has enough space.
        """
        with self._lock:
            kept = self._kept.pop(name, None)
        if kept is not None:
            fits = size <= available_memory() - RESERVED_BYTES  # all blocks may be new
            if fits and kept.nbytes <= MAX_OVERSIZE_FACTOR * size + MAX_OVERSIZE_BYTES:
                kept.clear_header()
                return kept
            kept.close()
        return allocate_storage(folder, name, size)

    def release(self, name: str, storage: Storage) -> None:
        """Return ``storage``, which nobody reads any more, to the pool, or close it."""
        if not storage.is_complete:  # ranks may have overwritten blocks
            storage.tracker.close()  # so that all bytes are compared
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
        """Collapse pages of pooled storage into huge pages, which the next ranks read faster.

        The run that wrote them did not wait for this where memory was scarce or a virtual machine
        had to obtain it first.  Half of the time the thread sleeps.
        """

        def collapse_next_page() -> None:
            took = COLLAPSE_DELAY
            while took:
                time.sleep(took)
                took = (
                    storage.layout.collapse_next_page() if self._kept.get(name) is storage else 0.0
                )

        if nbytes >= LARGE_PAGE:
            with suppress(RuntimeError):  # no thread can be started
                threading.Thread(
                    target=collapse_next_page, name="nbmgpu-pages", daemon=True
                ).start()

    def clear(self) -> None:
        """Free all pooled storage."""
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].close()

    def reset_in_child(self) -> None:
        """Empty the pool in a forked process, where the parent's thread may hold the lock."""
        self._lock, self._kept = threading.Lock(), {}


storage_pool = StoragePool()
"""The pool of this process."""


def _reset_in_child() -> None:
    """Release all storage of the parent and its ranks in a forked process."""
    storage_pool.reset_in_child()
    for storage in list(_storages_alive):
        storage.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
