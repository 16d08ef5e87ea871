"""The file format: memory blocks, and the pickle stream that refers to them.

Layout, little endian::

    8 bytes   magic; written last, so that an incomplete file is detected; a different one
              after blocks have been overwritten (``rewrite``)
    u64       offset of the index
    u64       length of the pickle stream
    u64       length of the table, a pickle of what the reader must know about each block
    u64       number of blocks
    32 bytes  the id of the run that the file is for
    the blocks, each with the alignment that it had in the writer's memory, modulo 64 bytes
    the index: per block u64 offset in the file, u64 length in bytes
    the pickle stream, the table

Blocks are mapped copy-on-write: all ranks of a machine share one physical copy until they write,
and only the writing process sees a write (except after ``rewrite``).  Blocks come first, so that a
file can be written again with most of them in place (``FileLayout``).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nbmgpu.system.ownership import require_own

from .file_layout import LARGE, FileLayout, Span
from .file_mapping import PRIVATE, SHARED, FileMap, NewPageWriter, write_at
from .threaded_copy import copy_changed, copy_in_threads

MAGIC = b"NBMGPU\x00\x04"
REWRITTEN = b"NBMGPU\x00\xff"
"""Magic of a container in which some blocks have been overwritten since (``rewrite``)."""

HEADER = struct.Struct("<8sQQQQ32s")
ENTRY = struct.Struct("<QQ")

POLL_INTERVAL, MAX_POLL_INTERVAL = 0.001, 0.005
"""Seconds between checks of a container that is being written."""

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
        path: the file, which is created or overwritten; it is not truncated.
        stream: the pickle stream.
        table: what the reader must know about each block.
        spans: address and length of each block; only the alignment of the address is stored.
        blocks: the bytes of each block, requested one at a time.
        layout: the layout of an in-memory file that nobody reads any more; equal bytes stay.
        written: for spans that were also written last time, the parts that may have changed since.
        owner: the id of the run that the container is for.

    Returns:
        The spans that were in the file before and of which most bytes had changed.
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
            if extent.is_reused and mapped is not None:
                old = mapped.view[extent.start : extent.start + extent.nbytes]
                parts = [slice(a - span[0], a - span[0] + n) for a, n in written.get(span, [span])]
                if sum(copy_changed(old[part], block[part]) for part in parts) > extent.nbytes / 2:
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
    except (OSError, AttributeError):  # a file on disk, or not Linux
        return False
    return True


def _in_memory(
    fd: int, nbytes: int, layout: FileLayout
) -> tuple[FileMap, NewPageWriter] | tuple[None, None]:
    """Map an in-memory file; return it with a writer for the pages behind its present end.

    Returns (None, None) if a limit on address space forbids the mapping.  The file is then written
    like one on disk.
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
    """Overwrite some blocks of an in-memory container; their lengths stay the same.

    The magic is zero while bytes are written and ``REWRITTEN`` afterwards, so ``read`` rejects an
    incomplete file in both cases.  Processes that have mapped the file see the new bytes.

    Args:
        path: a container for which ``can_rewrite`` returned True.
        blocks: block numbers and their new bytes, requested one at a time.
        owner: the id of the run that the container was for when it was mapped.

    Returns:
        Whether all blocks were written.  If not, the magic marks the container as incomplete.
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
    except OSError:  # address space limit
        return False
    finally:
        os.close(fd)
    return True


def can_rewrite(path: str, owner: str) -> bool:
    """Return whether the container at ``path`` is complete, in memory, and still for ``owner``.

    Rewriting a file on disk is not faster than writing a new one.  A file with a name, as on tmpfs,
    stays as it was sent: a later kernel may open it.
    """
    with open(path, "rb") as file:
        return _can_rewrite(file.fileno(), owner)


def _can_rewrite(fd: int, owner: str) -> bool:
    head = os.pread(fd, HEADER.size, 0)
    if not _is_memory(fd) or os.fstat(fd).st_nlink or len(head) < HEADER.size:
        return False
    magic, *_, found = HEADER.unpack(head)
    return bool(magic == MAGIC and found.rstrip(b"\0").decode() == owner)


def is_complete(path: str) -> bool:
    """Return whether there is a complete container at ``path`` that has not been rewritten."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def mark_complete(path: str) -> None:
    """Mark a ``REWRITTEN`` container as complete."""
    with open(path, "r+b") as file:
        file.write(MAGIC)


def set_owner(path: str, owner: str) -> None:
    """Let the complete container at ``path``, in a file, be for the run ``owner``.

    Raises:
        OwnershipError: another user may have written it.
    """
    with open(path, "r+b") as file:
        require_own(path, file.fileno())
        *fields, _ = HEADER.unpack(file.read(HEADER.size))
        file.seek(0)
        file.write(HEADER.pack(*fields, owner.encode()))


def wait_until_complete(path: str, owner: str = "") -> None:
    """Wait until the container at ``path`` is complete; the writer's failure must end the wait.

    Polling intervals grow with the time waited, because large containers take long.

    Raises:
        ValueError: it is not for ``owner``, because another run has reused the storage.
    """
    pause = POLL_INTERVAL
    with open(path, "rb") as file:
        while os.pread(file.fileno(), len(MAGIC), 0) != MAGIC:
            time.sleep(pause)
            pause = min(1.1 * pause, MAX_POLL_INTERVAL)
        *_, found = HEADER.unpack(os.pread(file.fileno(), HEADER.size, 0))
    if found.rstrip(b"\0").decode() != owner:
        raise ValueError(f"{path} belongs to another run")


@dataclass(frozen=True)
class Container:
    """An open container: the stream, its table, and the blocks as writable private memory."""

    stream: memoryview
    table: memoryview
    blocks: list[memoryview]
    path: str


def read(path: str, expected: bytes = MAGIC) -> Container:
    """Map the container at ``path``, whose magic must be ``expected``.

    Raises:
        OwnershipError: another user may have written it.
        ValueError: it is not a container, or not a complete one.
    """
    with open(path, "rb") as file:
        require_own(path, file.fileno())
        if os.fstat(file.fileno()).st_size < HEADER.size:
            raise ValueError(f"{path} is empty")
        mapped = FileMap(file.fileno(), os.fstat(file.fileno()).st_size, PRIVATE).view
    magic, at, length, table, count, _ = HEADER.unpack_from(mapped)
    if magic != expected:
        raise ValueError(f"{path} is not an nbmgpu bundle, or is incomplete")
    body = at + ENTRY.size * count
    end = body + length
    whole = end + table <= mapped.nbytes
    entries = list(ENTRY.iter_unpack(mapped[at:body])) if whole else []
    if not whole or any(start + size > mapped.nbytes for start, size in entries):
        raise ValueError(f"{path} is truncated")
    blocks = [mapped[start : start + size] for start, size in entries]
    return Container(mapped[body:end], mapped[end : end + table], blocks, path)
