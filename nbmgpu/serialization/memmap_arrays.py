"""NumPy memmaps, which ranks map from their files instead of receiving their data."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def is_mapped_file(array: Any) -> bool:
    """Return whether an array can be mapped from its file by ranks.

    A copy-on-write memmap cannot, because what was written to it is not in the file.
    """
    if not isinstance(array, np.memmap) or getattr(array, "_mmap", None) is None:
        return False
    if not array.filename:
        return False
    return array.mode != "c" and not array.dtype.hasobject and array.size > 0


def place_in_file(array: Any) -> tuple[Any, ...]:
    """Return the arguments with which ``load_mapped_file`` maps the same elements."""
    mapped = memoryview(array._mmap)
    whole = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    # The mapping begins at the page that contains the first element.
    page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset = array.__array_interface__["data"][0] - whole + page
    mode = "r+" if array.flags.writeable else "r"
    return str(array.filename), mode, offset, array.dtype, array.shape, array.strides


def load_mapped_file(
    filename: str,
    mode: Any,
    offset: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    """Map an array whose first element is at ``offset`` of a file."""
    lowest = offset + sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    reach = sum(abs((n - 1) * s) for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
    whole = np.memmap(filename, np.uint8, mode, lowest, (reach,))
    array: Any = np.ndarray(shape, dtype, whole, offset - lowest, strides).view(np.memmap)
    array.__array_finalize__(whole)  # copies the attributes of the memmap
    return array
