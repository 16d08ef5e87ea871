"""Compares and copies large memory with several threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from nbmgpu.system.limits import usable_cores

T = TypeVar("T")

PIECE = 16 << 20
"""Bytes that a thread processes at a time."""

MAX_THREADS = 4
"""Enough threads to saturate the memory bandwidth."""

_memcmp = ctypes.CDLL(None).memcmp if hasattr(ctypes.CDLL(None), "memcmp") else None


def same_bytes(a: memoryview, b: memoryview) -> bool:
    """Return whether ``a`` and ``b``, of equal length, have the same bytes."""
    begins = _equal(a[:PIECE], b[:PIECE])  # trained weights already differ in the first piece
    return begins and all(_map_pieces(_equal, a[PIECE:], b[PIECE:]))


def copy_changed(old: memoryview, new: memoryview) -> int:
    """Copy ``new`` over ``old``, of equal length; return the number of bytes written.

    Pieces of ``PIECE`` bytes that are equal are not written.
    """
    return sum(_map_pieces(_update, old, new))


def copy_in_threads(memory: memoryview, data: memoryview) -> None:
    """Copy ``data`` to ``memory``, of equal length, with several threads."""
    _map_pieces(copy, memory, data)


def _map_pieces(
    work: Callable[[memoryview, memoryview], T], a: memoryview, b: memoryview
) -> list[T]:
    starts = range(0, a.nbytes, PIECE) or [0]
    pieces = ([memory[start : start + PIECE] for start in starts] for memory in (a, b))
    return map_in_threads(work, *pieces)


def map_in_threads(work: Callable[..., T], *pieces: Sequence[Any]) -> list[T]:
    """Call ``work`` with the first items of all ``pieces``, with the second items, and so on."""
    if len(pieces[0]) == 1:
        return [*map(work, *pieces)]
    threads = ThreadPoolExecutor(min(MAX_THREADS, usable_cores()))
    try:
        return [*threads.map(work, *pieces)]
    except RuntimeError:  # no thread can be started
        return [*map(work, *pieces)]
    finally:  # after an interrupt, wait until no thread writes any more
        threads.shutdown(cancel_futures=True)


def _update(old: memoryview, new: memoryview) -> int:
    if _equal(old, new):
        return 0
    copy(old, new)
    return new.nbytes


def copy(memory: memoryview, data: memoryview) -> None:
    """Copy ``data`` to ``memory``, of equal length."""
    np.copyto(np.frombuffer(memory, np.uint8), np.frombuffer(data, np.uint8))


def _equal(a: memoryview, b: memoryview) -> bool:
    first, second = np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8)
    if _memcmp is None:
        return bool(np.array_equal(first, second))
    addresses = (ctypes.c_void_p(array.ctypes.data) for array in (first, second))
    return not _memcmp(*addresses, ctypes.c_size_t(first.nbytes))
