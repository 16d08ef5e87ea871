"""The file format: memory blocks, and the pickle stream that refers to them.

Layout, little endian::

    8 bytes   magic; written last, so that half a file is known as one
    u64       where the index begins
    u64       length of the pickle stream
    u64       length of the table, a pickle of what the reader must know of each block
    u64       number of blocks
    the blocks, each aligned as it was in the writer's memory, modulo 64 bytes
    the index: per block u64 offset in the file, u64 length in bytes
    the pickle stream, the table

Blocks are mapped copy-on-write: all ranks of a machine share one physical copy
until they write, and a write is seen by the writer alone.  They come first, so that a
file can be written again with most of them where they were (``Layout``).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .layout import Layout
from .sameness import update

MAGIC = b"NBMGPU\x00\x03"

HEAD = struct.Struct("<8sQQQQ")
ENTRY = struct.Struct("<QQ")


def write(
    path: str,
    stream: bytes | memoryview,
    table: bytes,
    spans: Sequence[tuple[int, int]],
    blocks: Iterable[memoryview],
    layout: Layout | None = None,
) -> None:
    """Write a container to ``path``.

    Args:
        path: a file, made or overwritten; what it has beyond that stays.
        stream: the pickles.
        table: what the reader must know of each block.
        spans: the address of each block, of which only the alignment is kept, and its length.
        blocks: their bytes, asked for one at a time.
        layout: of a file in memory that nobody reads any more: what it has is kept.
    """
    layout = layout or Layout(HEAD.size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(HEAD.size), 0)
        spots = layout.arrange(spans)
        older = layout.mapped(fd) if any(spot.kept for spot in spots) else memoryview(b"")
        for spot, block in zip(spots, blocks, strict=True):
            if spot.kept:
                update(older[spot.start : spot.start + spot.nbytes], block)
            else:
                _write_all(fd, block, spot.start)
        at = max([layout.end, *(spot.start + spot.nbytes for spot in spots)])
        index = b"".join(ENTRY.pack(spot.start, spot.nbytes) for spot in spots)
        _write_all(fd, index, at)
        _write_all(fd, stream, at + len(index))
        _write_all(fd, table, at + len(index) + len(stream))
        os.pwrite(fd, HEAD.pack(MAGIC, at, len(stream), len(table), len(spots)), 0)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    view = memoryview(data).cast("B")
    while view:  # Linux writes at most 2 GiB at a time
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


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
    magic, at, length, table, count = HEAD.unpack_from(mapped)
    if magic != MAGIC:
        raise ValueError(f"{path} is not an nbmgpu bundle, or not a whole one")
    body = at + ENTRY.size * count
    end = body + length
    whole = end + table <= mapped.nbytes
    entries = list(ENTRY.iter_unpack(mapped[at:body])) if whole else []
    if not whole or any(start + size > mapped.nbytes for start, size in entries):
        raise ValueError(f"{path} has been cut off")
    blocks = [mapped[start : start + size] for start, size in entries]
    return Container(mapped[body:end], mapped[end : end + table], blocks, path)
