"""The file format: memory blocks, and the pickle stream that refers to them.

Layout, little endian::

    8 bytes   magic; written last, so that half a file is known as one
    u64       where the index begins
    u64       length of the pickle stream
    u64       length of the table, a pickle of what the reader must know of each block
    u64       number of blocks
    32 bytes  the run that it is for: its id
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
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .layout import Layout, Span
from .sameness import update

MAGIC = b"NBMGPU\x00\x03"

HEAD = struct.Struct("<8sQQQQ32s")
ENTRY = struct.Struct("<QQ")

PAUSE, LONGEST_PAUSE = 0.001, 0.02
"""Seconds between looks at a container that is being written."""

NOTHING: Mapping[Span, Sequence[Span]] = {}


def write(
    path: str,
    stream: bytes | memoryview,
    table: bytes,
    spans: Sequence[Span],
    blocks: Iterable[memoryview],
    layout: Layout | None = None,
    written: Mapping[Span, Sequence[Span]] = NOTHING,
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
        written: of spans that were among the last ones too, the parts that may differ since.
        owner: the id of the run that it is for.

    Returns:
        The spans that had been there and mostly were not as they are now.
    """
    changed: list[Span] = []
    layout = layout or Layout(HEAD.size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(HEAD.size), 0)
        spots = layout.arrange(spans)
        older = layout.mapped(fd) if any(spot.kept for spot in spots) else memoryview(b"")
        for span, spot, block in zip(spans, spots, blocks, strict=True):
            if spot.kept:
                old = older[spot.start : spot.start + spot.nbytes]
                parts = [slice(a - span[0], a - span[0] + n) for a, n in written.get(span, [span])]
                if sum(update(old[part], block[part]) for part in parts) > spot.nbytes / 2:
                    changed.append(span)
            else:
                _write_all(fd, block, spot.start)
        at = max([layout.end, *(spot.start + spot.nbytes for spot in spots)])
        index = b"".join(ENTRY.pack(spot.start, spot.nbytes) for spot in spots)
        _write_all(fd, index, at)
        _write_all(fd, stream, at + len(index))
        _write_all(fd, table, at + len(index) + len(stream))
        head = HEAD.pack(MAGIC, at, len(stream), len(table), len(spots), owner.encode())
        os.pwrite(fd, head[len(MAGIC) :], len(MAGIC))
        os.pwrite(fd, MAGIC, 0)
        return changed
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    view = memoryview(data).cast("B")
    while view:  # Linux writes at most 2 GiB at a time
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def wait_for(path: str, owner: str = "") -> None:
    """Wait until the container at ``path`` has been written; who fails to do so ends the waiting.

    Pauses grow with the time that has been waited, since large ones take long.

    Raises:
        ValueError: it is not for ``owner``: memory that a run has given up is another run's.
    """
    pause = PAUSE
    with open(path, "rb") as file:
        while os.pread(file.fileno(), len(MAGIC), 0) != MAGIC:
            time.sleep(pause)
            pause = min(1.1 * pause, LONGEST_PAUSE)
        *_, found = HEAD.unpack(os.pread(file.fileno(), HEAD.size, 0))
    if found.rstrip(b"\0").decode() != owner:
        raise ValueError(f"{path} is another run's by now")


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
    magic, at, length, table, count, _ = HEAD.unpack_from(mapped)
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
