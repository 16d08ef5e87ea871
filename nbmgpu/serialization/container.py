"""The file format: memory blocks, and the pickle stream that refers to them.

FileLayout, little endian::

    8 bytes   magic; written last, so that half a file is known as one; another one after
              blocks have got other bytes (``rewrite``)
    u64       where the index begins
    u64       length of the pickle stream
    u64       length of the table, a pickle of what the reader must know of each block
    u64       number of blocks
    32 bytes  the run that it is for: its id
    the blocks, each aligned as it was in the writer's memory, modulo 64 bytes
    the index: per block u64 offset in the file, u64 length in bytes
    the pickle stream, the table

Blocks are mapped copy-on-write: all ranks of a machine share one physical copy
until they write, and a write is seen by the writer is_exclusive (but see ``rewrite``).  They come
first, so that a file can be written again with most of them where they were (``FileLayout``).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .file_layout import LARGE, FileLayout, Span
from .file_mapping import PRIVATE, SHARED, FileMap, NewPageWriter, write_at
from .threaded_copy import copy_changed, copy_in_threads

MAGIC = b"NBMGPU\x00\x04"
REWRITTEN = b"NBMGPU\x00\xff"
"""The mark of a container some blocks of which have got other bytes since (``rewrite``)."""

HEADER = struct.Struct("<8sQQQQ32s")
ENTRY = struct.Struct("<QQ")

POLL_INTERVAL, MAX_POLL_INTERVAL = 0.001, 0.005
"""Seconds between looks at a container that is being written."""

NO_CHANGES: Mapping[Span, Sequence[Span]] = {}


def write(
    path: str,
    stream: bytes | memoryview,
    table: bytes,
    spans: Sequence[Span],
    blocks: Iterable[memoryview],
    layout: FileLayout | None = None,
    written: Mapping[Span, Sequence[Span]] = NO_CHANGES,
    owner: str = "",
) -> list[Span]:
    """Write a container to ``path``.

    Args:
        path: a file, made or overwritten; what it has beyond that stays.
        stream: the pickles.
        table: what the reader must know of each block.
        spans: the address of each block, of which only the alignment is kept, and its length.
        blocks: their bytes, asked for one at a time.
        layout: of a file in memory that nobody reads any more: what it has is kept.
        written: of spans that were among the last ones too, the named_parts that may differ since.
        owner: the id of the run that it is for.

    Returns:
        The spans that had been there and mostly were not as they are now.
    """
    changed: list[Span] = []
    layout = layout or FileLayout(HEADER.size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(HEADER.size), 0)
        extents = layout.allocate_extents(spans)
        at = max([layout.end, *(extent.start + extent.nbytes for extent in extents)])
        mapped, new = _in_memory(fd, at, layout) if _is_memory(fd) else (None, None)
        for span, extent, block in zip(spans, extents, blocks, strict=True):
            if extent.kept and mapped is not None:
                old = mapped.view[extent.start : extent.start + extent.nbytes]
                named_parts = [
                    slice(a - span[0], a - span[0] + n) for a, n in written.get(span, [span])
                ]
                if (
                    sum(copy_changed(old[part], block[part]) for part in named_parts)
                    > extent.nbytes / 2
                ):
                    changed.append(span)
            elif new is not None and extent.nbytes >= LARGE:
                new.write(extent.start, block)
            else:
                write_at(fd, block, extent.start)
        index = b"".join(ENTRY.pack(extent.start, extent.nbytes) for extent in extents)
        write_at(fd, index, at)
        write_at(fd, stream, at + len(index))
        write_at(fd, table, at + len(index) + len(stream))
        head = HEADER.pack(MAGIC, at, len(stream), len(table), len(extents), owner.encode())
        os.pwrite(fd, head[len(MAGIC) :], len(MAGIC))
        os.pwrite(fd, MAGIC, 0)
        return changed
    finally:
        os.close(fd)


def _is_memory(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except (OSError, AttributeError):  # files on disks have none, nor have other systems
        return False
    return True


def _in_memory(
    fd: int, nbytes: int, layout: FileLayout
) -> tuple[FileMap, NewPageWriter] | tuple[None, None]:
    """Return a file in memory as such, and what writes behind its present end.

    Neither where a limit on addresses forbids it: then it is written as any file.
    """
    before = os.fstat(fd).st_size
    if before < nbytes:
        os.ftruncate(fd, nbytes)
    try:
        mapped = layout.mapped(fd)
    except OSError:
        return None, None
    return mapped, NewPageWriter(fd, mapped, before, nbytes)


def rewrite(path: str, blocks: Iterable[tuple[int, memoryview]], owner: str) -> bool:
    """Put other bytes into some blocks of a container in memory, which keep their length.

    Its mark is zero from the first byte on, and ``REWRITTEN`` after the last: ``read`` takes half
    of it for neither.  Whoever has mapped the file sees the new bytes.

    Args:
        path: a container of which ``can_rewrite`` has told that it may be rewritten.
        blocks: numbers of blocks and their new bytes, asked for one at a time.
        owner: the id of the run that the container was for when it was mapped.

    Returns:
        Whether it was done; else there may be half of it, and it says so.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        if not _can_rewrite(fd, owner):
            return False
        memory = FileMap(fd, os.fstat(fd).st_size, SHARED).view
        _, at, _, _, count, _ = HEADER.unpack_from(memory)
        entries = list(ENTRY.iter_unpack(memory[at : at + ENTRY.size * count]))
        os.pwrite(fd, bytes(len(MAGIC)), 0)
        for number, block in blocks:
            start, nbytes = entries[number]
            copy_in_threads(memory[start : start + nbytes], block)
        os.pwrite(fd, REWRITTEN, 0)
    except OSError:  # a limit on addresses
        return False
    finally:
        os.close(fd)
    return True


def can_rewrite(path: str, owner: str) -> bool:
    """Tell whether the container at ``path`` is whole, in memory, and for the run ``owner`` still.

    A file on a disk is no quicker to write than another one.
    """
    with open(path, "rb") as file:
        return _can_rewrite(file.fileno(), owner)


def _can_rewrite(fd: int, owner: str) -> bool:
    head = os.pread(fd, HEADER.size, 0)
    if not _is_memory(fd) or len(head) < HEADER.size:
        return False
    magic, *_, found = HEADER.unpack(head)
    return bool(magic == MAGIC and found.rstrip(b"\0").decode() == owner)


def is_complete(path: str) -> bool:
    """Tell whether there is a container at ``path``, and as it was written."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def mark_complete(path: str) -> None:
    """Let a ``REWRITTEN`` container be one as it was written."""
    with open(path, "r+b") as file:
        file.write(MAGIC)


def wait_until_complete(path: str, owner: str = "") -> None:
    """Wait until the container at ``path`` has been written; who fails to do so ends the waiting.

    Pauses grow with the time that has been waited, since large ones take long.

    Raises:
        ValueError: it is not for ``owner``: memory that a run has given up is another run's.
    """
    pause = POLL_INTERVAL
    with open(path, "rb") as file:
        while os.pread(file.fileno(), len(MAGIC), 0) != MAGIC:
            time.sleep(pause)
            pause = min(1.1 * pause, MAX_POLL_INTERVAL)
        *_, found = HEADER.unpack(os.pread(file.fileno(), HEADER.size, 0))
    if found.rstrip(b"\0").decode() != owner:
        raise ValueError(f"{path} is another run's by now")


@dataclass(frozen=True)
class Container:
    """An open container: the stream, its table, and the blocks as writable private memory."""

    stream: memoryview
    table: memoryview
    blocks: list[memoryview]
    path: str


def read(path: str, expected: bytes = MAGIC) -> Container:
    """Map the container at ``path``, whose mark is to be ``expected``.

    Raises:
        ValueError: it is not a container, or not a whole one.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < HEADER.size:
            raise ValueError(f"{path} is empty")
        mapped = FileMap(file.fileno(), os.fstat(file.fileno()).st_size, PRIVATE).view
    magic, at, length, table, count, _ = HEADER.unpack_from(mapped)
    if magic != expected:
        raise ValueError(f"{path} is not an nbmgpu bundle, or not a whole one")
    body = at + ENTRY.size * count
    end = body + length
    whole = end + table <= mapped.nbytes
    entries = list(ENTRY.iter_unpack(mapped[at:body])) if whole else []
    if not whole or any(start + size > mapped.nbytes for start, size in entries):
        raise ValueError(f"{path} has been cut off")
    blocks = [mapped[start : start + size] for start, size in entries]
    return Container(mapped[body:end], mapped[end : end + table], blocks, path)
