"""AddressSpace on the receiving side: where the views of a pickle find their bytes."""

from __future__ import annotations

import bisect
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .file_layout import ALIGNMENT
from .memory_blocks import CPU, Block, view_memory

BUNDLE_SPACE = "home"
"""Begins the space of memory that came with the bundle; the block's number there follows."""


class BlockEntry(NamedTuple):
    """What a receiver must know of a block: its place on the sending side.

    The bytes of one that is ``in_bundle`` lie in the bundle with which it went out.
    """

    space: str
    device: str
    low: int
    in_bundle: bool = False


class BufferEntry(NamedTuple):
    """A buffer that a type of another library handed out: its place on the sending side."""

    space: str
    address: int
    nbytes: int


def dump_table(blocks: Sequence[Block], buffers: Sequence[BufferEntry]) -> bytes:
    """Pickle what a receiver must know of blocks and buffers."""
    entries = [(block.space, block.device, block.low, block.in_bundle) for block in blocks]
    return pickle.dumps((entries, [tuple(buffer) for buffer in buffers]))


def load_table(table: memoryview) -> tuple[list[BlockEntry], list[BufferEntry]]:
    """Read what ``dump_table`` wrote."""
    entries, buffers = pickle.loads(table)
    return [BlockEntry(*entry) for entry in entries], [BufferEntry(*entry) for entry in buffers]


class MappedRegion:
    """A block that map_regions.  GPU blocks go to ``device``; so "cpu" keeps all in CPU memory."""

    def __init__(self, raw: memoryview, device: str = CPU) -> None:
        """Lie over ``raw``, the bytes in CPU memory."""
        self.raw = raw
        self.device = device
        self._storage: Any = None
        self._base = 0
        self._between: dict[int, Any] = {}

    def buffer(self) -> memoryview:
        """Return the bytes in CPU memory."""
        return self.raw

    def storage(self, offset: int, nbytes: int, item: int) -> tuple[Any, int]:
        """Return an untyped torch storage with ``nbytes`` from byte ``offset`` on, and their place.

        Elements have ``item`` bytes, and torch counts whole ones from a storage's first byte.  The
        block may begin between two of them, where a view of smaller elements does.
        """
        import torch

        if self._storage is None:
            data = torch.frombuffer(self.raw, dtype=torch.uint8)
            self._storage = data.to(self.device).untyped_storage()
        start = self._base + offset
        skew = start % item
        return (self._storage_from(skew) if skew else self._storage), start - skew

    def _storage_from(self, skew: int) -> Any:
        """Return a storage over the same memory from byte ``skew`` of the first one on."""
        import torch

        if skew not in self._between:
            if self.device != CPU:
                raise ValueError("on a GPU, a tensor begins between two elements of another one")
            whole = self._storage
            raw = view_memory(whole.data_ptr() + skew, whole.nbytes() - skew, whole)
            self._between[skew] = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        return self._between[skew]

    def span(self) -> tuple[str, int, int]:
        """Return the device and the addresses where the bytes lie in this process."""
        if self.device == CPU or self._storage is None:
            address = address_of(self.raw)
            return CPU, address, address + self.raw.nbytes
        address = self._storage.data_ptr()
        return str(self._storage.device), address, address + self._storage.nbytes()


class OwnedRegion(MappedRegion):
    """A copy of a block, so that a small result does not keep a whole file mapped.

    It is aligned as the memory at address ``low`` is on the sending side.
    """

    def __init__(self, raw: memoryview, low: int) -> None:
        """Copy ``raw``."""
        import torch

        skew = low % ALIGNMENT
        storage = torch.empty(skew + raw.nbytes, dtype=torch.uint8).untyped_storage()
        super().__init__(view_memory(storage.data_ptr() + skew, raw.nbytes, storage))
        self.raw[:] = raw
        self._storage, self._base = storage, skew


class AddressSpace:
    """The regions of a bundle, found by their addresses on the sending side."""

    def __init__(
        self,
        entries: Sequence[BlockEntry],
        regions: Sequence[MappedRegion],
        gpu: Callable[[], str] = lambda: CPU,
    ) -> None:
        """Take regions with their entries, in the order of ``BlockTable.blocks``.

        ``gpu`` returns the device for what the sender has on a GPU; it is asked only for that.
        """
        self.regions = list(regions)
        self._gpu = gpu
        self._starts: dict[str, list[int]] = {}
        self._regions: dict[str, list[MappedRegion]] = {}
        for entry, region in zip(entries, regions, strict=True):
            self._starts.setdefault(entry.space, []).append(entry.low)
            self._regions.setdefault(entry.space, []).append(region)

    def device(self, sent_from: str) -> str:
        """Return the device for what the sender has on ``sent_from``."""
        return CPU if sent_from == CPU else self._gpu()

    def find(self, space: str, address: int) -> tuple[MappedRegion, int]:
        """Return the region that holds ``address`` of ``space``, and the offset there."""
        starts = self._starts[space]
        index = bisect.bisect_right(starts, address) - 1
        return self._regions[space][index], address - starts[index]

    def buffers(self, entries: Sequence[BufferEntry]) -> Iterator[memoryview]:
        """Yield the buffers of a pickle in its order."""
        for space, address, nbytes in entries:
            region, offset = self.find(space, address)
            yield region.buffer()[offset : offset + nbytes]


def map_regions(
    entries: Sequence[BlockEntry], blocks: Sequence[memoryview], device: str
) -> AddressSpace:
    """Return the memory of a bundle as it is mapped; GPU blocks are copied to ``device``."""
    pairs = zip(entries, blocks, strict=True)
    regions = [MappedRegion(raw, CPU if entry.device == CPU else device) for entry, raw in pairs]
    return AddressSpace(entries, regions, lambda: device)


def address_of(raw: memoryview) -> int:
    """Return the address of the first byte of ``raw``."""
    return int(np.frombuffer(raw, np.uint8).__array_interface__["data"][0])
