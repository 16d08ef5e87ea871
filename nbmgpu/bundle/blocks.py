"""Memory blocks: the bytes behind tensors and arrays, found once however many views there are.

A tensor or array is pickled as a *view* (dtype, shape, strides, offset) of a
block.  Blocks are recognised by their address, so views keep sharing memory,
tied weights stay tied, and ``torch.from_numpy`` pairs stay pairs.  Only the
range that some view uses is shipped.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from .container import ALIGNMENT

CPU = "cpu"


@dataclass(eq=False)
class Block:
    """A piece of memory on the sending side.

    ``owner`` keeps the memory alive; ``low`` and ``high`` bound the bytes that
    views use, relative to ``address``.  ``origin`` is the index of the block in
    the bundle it came from, or None for memory that is new.
    """

    address: int
    nbytes: int
    device: str
    owner: Any
    low: int
    high: int
    origin: int | None = None
    unchanged: bool = False

    def widen(self, low: int, high: int) -> None:
        """Make the shipped range cover bytes ``low`` to ``high``.

        ``low`` is rounded down, so that elements stay aligned on the other side.
        """
        self.low, self.high = min(self.low, low // ALIGNMENT * ALIGNMENT), max(self.high, high)

    def bytes(self) -> memoryview:
        """Return the used range as bytes on the CPU."""
        if self.unchanged or self.high <= self.low:
            return memoryview(b"")
        if self.device == CPU:
            return view_memory(self.address + self.low, self.high - self.low)
        data = untyped_bytes(self.owner)[self.low : self.high].cpu().numpy()
        return memoryview(data)


class BlockTable:
    """All blocks of one pickle, by address."""

    def __init__(self) -> None:
        """Start empty."""
        self.blocks: list[Block] = []
        self._at: dict[tuple[str, int], int] = {}

    def index(self, address: int, nbytes: int, device: str, owner: Any) -> int:
        """Return the index of the block at ``address``, adding it when it is new."""
        key = (device, address if nbytes else -id(owner))
        if key not in self._at:
            self._at[key] = len(self.blocks)
            self.blocks.append(Block(address, nbytes, device, owner, nbytes, 0))
        return self._at[key]

    def of_tensor(self, tensor: Any) -> int:
        """Return the block index of a strided tensor and widen the block to it."""
        storage = tensor.untyped_storage()
        device = str(tensor.device)
        index = self.index(storage.data_ptr(), storage.nbytes(), device, storage)
        item = tensor.element_size()
        low = tensor.storage_offset() * item
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel():
            self.blocks[index].widen(low, low + (reach + 1) * item)
        return index

    def of_array(self, array: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Return the block index of an array and its byte offset there."""
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        if type(array.base).__module__ == "torch":  # made by Tensor.numpy()
            index = self.of_tensor(array.base)
            address = self.blocks[index].address
            self.blocks[index].widen(low - address, high - address)
            return index, array.__array_interface__["data"][0] - address
        root = array
        while isinstance(root.base, np.ndarray) and type(root.base) is np.ndarray:
            root = root.base
        base_low, base_high = np.lib.array_utils.byte_bounds(root) if root.size else (0, 0)
        if not base_low <= low <= high <= base_high:
            root, base_low, base_high = array, low, high  # a view made by hand, out of its base
        index = self.index(base_low, base_high - base_low, CPU, root)
        block = self.blocks[index]
        if array.size:
            block.widen(low - base_low, high - base_low)
        first = array.__array_interface__["data"][0] if array.size else base_low
        return index, first - base_low


def view_memory(address: int, nbytes: int) -> memoryview:
    """Return ``nbytes`` of this process's memory at ``address``, writable."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def untyped_bytes(storage: Any) -> Any:
    """Return a uint8 tensor of shape (nbytes,) over a torch storage."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
