"""The memory behind tensors and arrays, collected once for all views of it.

A tensor or array is pickled as a *view*: dtype, shape, strides, and the address of its first
element on the sending side.  Memory is identified by its address alone, so views keep sharing it,
tied weights stay tied, and so do pairs from ``torch.from_numpy`` and ``Tensor.numpy``.  Only bytes
that some view covers are sent.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

import numpy as np

CPU = "cpu"
MAX_ELEMENT_BYTES = 16
"""Size of the largest elements; blocks on a GPU begin at a multiple of it."""

NO_ADDRESS = -1
"""The address of a tensor or array without elements."""


@dataclass(eq=False)
class Block:
    """Bytes ``low`` to ``high`` (addresses) of one memory ``space``.

    CPU memory is one space; on a GPU every storage is its own.  ``owners`` are the storages and
    arrays that keep the memory alive, by id.
    """

    space: str
    device: str
    low: int
    high: int
    owners: dict[int, Any]

    in_bundle = False
    """Whether a rank has written the bytes into the bundle instead of the result."""

    moved = 0
    """Bytes by which the memory has moved since it was pickled; see ``device_memory``."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.high - self.low

    @property
    def address(self) -> int:
        """Where the first byte is now."""
        return self.low + self.moved

    def bytes(self) -> memoryview:
        """Return the bytes in CPU memory: the memory itself, or a copy of GPU memory."""
        if self.device == CPU:
            return view_memory(self.low, self.nbytes, self.owners)
        return memoryview(self.as_device_tensor().cpu().numpy())

    def as_device_tensor(self) -> Any:
        """Return the bytes of a GPU block as a uint8 tensor of shape (nbytes,)."""
        storage = next(iter(self.owners.values()))
        start = self.address - storage.data_ptr()
        return untyped_bytes(storage)[start : start + self.nbytes]


class BlockTable:
    """All blocks of one pickle."""

    def __init__(self) -> None:
        """Create an empty table."""
        self._merged: list[Block] = []
        self._new: list[Block] = []
        self._counted: tuple[list[Block], int] = [], 0

    @property
    def blocks(self) -> list[Block]:
        """The blocks, sorted by space and address; adjacent ones are merged."""
        if self._new:
            ordered = sorted(self._merged + self._new, key=lambda block: (block.space, block.low))
            self._merged, self._new = [], []
            for block in ordered:
                last = self._merged[-1] if self._merged else None
                if last and last.space == block.space and block.low <= last.high:
                    last.high = max(last.high, block.high)
                    last.owners.update(block.owners)
                else:
                    self._merged.append(block)
        return self._merged

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks; memory that several views cover counts once."""
        blocks = self.blocks
        if blocks is not self._counted[0]:  # read once per name, and most names add no block
            self._counted = blocks, sum(block.nbytes for block in blocks)
        return self._counted[1]

    def add(self, device: str, low: int, high: int, owner: Any) -> tuple[str, int]:
        """Add the bytes from ``low`` to ``high``; return the space and address of the first."""
        space = device if device == CPU else f"{device} {owner.data_ptr():x}"
        self._new.append(Block(space, device, low, high, {id(owner): owner}))
        return space, low

    def add_tensor(self, tensor: Any) -> tuple[str, int]:
        """Add the bytes of a strided tensor; return the space and address of its first element.

        Raises:
            PicklingError: the storage of the tensor has been freed.
        """
        device = str(tensor.device)
        if not tensor.numel():
            return device, NO_ADDRESS
        storage, item = tensor.untyped_storage(), tensor.element_size()
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        end = (tensor.storage_offset() + reach + 1) * item
        if end > storage.nbytes():
            raise PicklingError("the tensor's memory has been freed (its storage was resized)")
        base, start = storage.data_ptr(), tensor.storage_offset() * item
        skew = 0 if device == CPU else start % MAX_ELEMENT_BYTES
        space, low = self.add(device, base + start - skew, base + end, storage)
        return space, low + skew

    def add_array(self, array: np.ndarray[Any, Any]) -> tuple[str, int]:
        """Add the bytes of an array; return the space and address of its first element."""
        if not array.size:
            return CPU, NO_ADDRESS
        first: int = array.__array_interface__["data"][0]
        low, high = np.lib.array_utils.byte_bounds(array)
        space, start = self.add(CPU, low, high, array)
        return space, start + first - low


def view_memory(address: int, nbytes: int, owners: object = None) -> memoryview:
    """Return ``nbytes`` of this process's memory at ``address`` as a writable view.

    The view keeps ``owners`` alive, and thereby the memory.
    """
    memory = (ctypes.c_char * nbytes).from_address(address)
    memory.owners = owners  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def untyped_bytes(storage: Any) -> Any:
    """Return a uint8 tensor of shape (nbytes,) over a torch storage."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
