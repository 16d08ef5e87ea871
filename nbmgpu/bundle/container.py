"""The file format: a pickle stream and the memory blocks it refers to.

Layout, little endian::

    8 bytes   magic; written last, so that half a file is known as one
    u64       length of the pickle stream
    u64       length of the table, a pickle of what the reader must know of each block
    u64       number of blocks
    per block u64 offset in the file, u64 length in bytes
    the pickle stream, the table
    the blocks, each aligned as it was in the writer's memory, modulo 64 bytes

Blocks are mapped copy-on-write: all ranks of a machine share one physical copy
until they write, and a write is seen by the writer alone.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbmgpu.errors import LaunchError, compose

MAGIC = b"NBMGPU\x00\x02"
ALIGNMENT = 64
RESERVE = 256 * 2**20
"""Bytes of memory left free before a bundle goes to disk instead."""
CGROUP = Path("/sys/fs/cgroup")

HEAD = struct.Struct("<8sQQQ")
ENTRY = struct.Struct("<QQ")


def write(
    path: str,
    stream: bytes | memoryview,
    table: bytes,
    spans: Sequence[tuple[int, int]],
    blocks: Iterable[memoryview],
) -> None:
    """Write a container to ``path``.

    Args:
        path: a file, made or overwritten.
        stream: the pickles.
        table: what the reader must know of each block.
        spans: the address of each block, of which only the alignment is kept, and its length.
        blocks: their bytes, asked for one at a time.
    """
    end = HEAD.size + ENTRY.size * len(spans) + len(stream) + len(table)
    index = bytearray()
    for address, nbytes in spans:
        start = end + (address - end) % ALIGNMENT if nbytes else end
        index += ENTRY.pack(start, nbytes)
        end = start + nbytes
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(HEAD.size))
        for part in (index, stream, table):
            _write_all(file.fileno(), part)
        for (start, _), block in zip(ENTRY.iter_unpack(index), blocks, strict=True):
            os.lseek(file.fileno(), start, os.SEEK_SET)
            _write_all(file.fileno(), block)
        file.seek(0)
        file.write(HEAD.pack(MAGIC, len(stream), len(table), len(spans)))


def _write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:  # Linux writes at most 2 GiB at a time
        view = view[os.write(fd, view) :]


@dataclass(frozen=True)
class Container:
    """An open container: the stream, its table, and the blocks as writable private memory."""

    stream: memoryview
    table: memoryview
    blocks: list[memoryview]
    path: str


def read(path: str) -> Container:
    """Map the container at ``path``.

    Raises:
        ValueError: it is not a container, or not a whole one.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < HEAD.size:
            raise ValueError(f"{path} is empty")
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    magic, length, table, count = HEAD.unpack_from(mapped)
    if magic != MAGIC:
        raise ValueError(f"{path} is not an nbmgpu bundle, or not a whole one")
    body = HEAD.size + ENTRY.size * count
    end = body + length
    whole = end + table <= mapped.nbytes
    entries = list(ENTRY.iter_unpack(mapped[HEAD.size : body])) if whole else []
    if not whole or any(start + size > mapped.nbytes for start, size in entries):
        raise ValueError(f"{path} has been cut off")
    blocks = [mapped[start : start + size] for start, size in entries]
    return Container(mapped[body:end], mapped[end : end + table], blocks, path)


@dataclass
class Place:
    """Where a container is kept: anonymous memory, or a file in the run's folder.

    Anonymous memory (``memfd_create``) has no name, so nothing can be left in
    ``/dev/shm``, and a small ``/dev/shm`` (64 MB in Docker) is no limit.  Other
    processes of the same user open it through ``path``.
    """

    path: str
    fd: int | None = None
    notice: str = ""

    def close(self) -> None:
        """Free the memory, or remove the file."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        else:
            Path(self.path).unlink(missing_ok=True)


def make_place(folder: Path, name: str, size: int) -> Place:
    """Return a place for ``size`` bytes: memory when it fits, else a file in ``folder``.

    Raises:
        LaunchError: neither memory nor the disk has room.
    """
    room = available_memory() - RESERVE
    if hasattr(os, "memfd_create") and size <= room:
        fd = os.memfd_create(f"nbmgpu-{name}")
        return Place(f"/proc/{os.getpid()}/fd/{fd}", fd)
    folder.mkdir(parents=True, exist_ok=True)
    free = psutil.disk_usage(str(folder)).free
    if size > free:
        raise LaunchError(
            compose(
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
    return Place(str(folder / name), notice=notice)


def available_memory() -> int:
    """Return bytes of memory that can be had: the machine's, or the container's if less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit, used = (CGROUP / "memory.max").read_text(), (CGROUP / "memory.current").read_text()
        if limit.strip() != "max":
            lines = (CGROUP / "memory.stat").read_text().splitlines()
            counts = dict(line.split() for line in lines)
            reclaimable = int(counts["inactive_file"])  # file pages that give way
            available = min(available, int(limit) - int(used) + reclaimable)
    except (OSError, ValueError, KeyError):
        pass  # no cgroup v2: the machine's own figure stands
    return available
