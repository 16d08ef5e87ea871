"""Maps addresses of the sending process to memory of the receiving process."""

from __future__ import annotations

import bisect
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .file_layout import ALIGNMENT
from .memory_blocks import CPU, Block, view_memory

BUNDLE_SPACE = "bundle"
"""Prefix of the memory space of blocks that came with the bundle; the block number follows."""


class BlockEntry(NamedTuple):
    """What a receiver must know about a block.

    Attributes:
        space: the memory space on the sending side, see ``nbmgpu.serialization.memory_blocks``.
        device: the device on the sending side.
        low: the address of the first byte on the sending side.
        in_bundle: whether the bytes are in the bundle that the block came with.
    """

    space: str
    device: str
    low: int
    in_bundle: bool = False


class BufferEntry(NamedTuple):
    """An out-of-band pickle buffer of another library: its address on the sending side."""

    space: str
    address: int
    nbytes: int


def dump_table(blocks: Sequence[Block], buffers: Sequence[BufferEntry]) -> bytes:
    """Pickle the entries of blocks and buffers."""
    entries = [(block.space, block.device, block.low, block.in_bundle) for block in blocks]
    return pickle.dumps((entries, [tuple(buffer) for buffer in buffers]))


def load_table(table: memoryview) -> tuple[list[BlockEntry], list[BufferEntry]]:
    """Read what ``dump_table`` wrote."""
    entries, buffers = pickle.loads(table)
    return [BlockEntry(*entry) for entry in entries], [BufferEntry(*entry) for entry in buffers]


class MappedRegion:
    """A received block.  Blocks of a GPU are copied to ``device``, which may be "cpu"."""

    def __init__(self, raw: memoryview, device: str = CPU) -> None:
        """Create a region over ``raw``, the bytes in CPU memory."""
        self.raw = raw
        self.device = device
        self._storage: Any = None
        self._base = 0
        self._between: dict[int, Any] = {}

    def buffer(self) -> memoryview:
        """Return the bytes in CPU memory."""
        return self.raw

    def storage(self, offset: int, nbytes: int, item: int) -> tuple[Any, int]:
        """Return a torch storage that contains some bytes of the region, and their offset in it.

        Torch counts whole elements from the first byte of a storage.  A block may begin between two
        elements if a tensor of smaller elements begins there.

        Args:
            offset: the first byte in the region.
            nbytes: the number of bytes.
            item: the size of an element in bytes.
        """
        import torch

        if self._storage is None:
            data = torch.frombuffer(self.raw, dtype=torch.uint8)
            self._storage = data.to(self.device).untyped_storage()
        start = self._base + offset
        skew = start % item
        return (self._storage_from(skew) if skew else self._storage), start - skew

    def _storage_from(self, skew: int) -> Any:
        """Return a storage over the same memory that begins ``skew`` bytes later."""
        import torch

        if skew not in self._between:
            if self.device != CPU:
                raise ValueError("on a GPU, a tensor begins between two elements of another one")
            whole = self._storage
            raw = view_memory(whole.data_ptr() + skew, whole.nbytes() - skew, whole)
            self._between[skew] = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        return self._between[skew]

    def storages(self) -> list[Any]:
        """Return the torch storages that have been made over the bytes."""
        return [self._storage, *self._between.values()] if self._storage is not None else []

    def span(self) -> tuple[str, int, int]:
        """Return the device and the start and end address of the bytes in this process."""
        if self.device == CPU or self._storage is None:
            address = address_of(self.raw)
            return CPU, address, address + self.raw.nbytes
        address = self._storage.data_ptr()
        return str(self._storage.device), address, address + self._storage.nbytes()


class OwnedRegion(MappedRegion):
    """A copy of a block, so that a small result does not keep a whole file mapped.

    It has the same alignment as the memory at address ``low`` of the sending process.
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
    """The regions of a bundle, indexed by their addresses on the sending side."""

    def __init__(
        self,
        entries: Sequence[BlockEntry],
        regions: Sequence[MappedRegion],
        gpu: Callable[[], str] = lambda: CPU,
    ) -> None:
        """Index ``regions``, whose entries are in the order of ``BlockTable.blocks``.

        ``gpu`` returns the device for memory that the sender has on a GPU.  It is called only for
        that.
        """
        self.regions = list(regions)
        self.sent_from = [entry.device for entry in entries]
        self._gpu = gpu
        self._starts: dict[str, list[int]] = {}
        self._regions: dict[str, list[MappedRegion]] = {}
        for entry, region in zip(entries, regions, strict=True):
            self._starts.setdefault(entry.space, []).append(entry.low)
            self._regions.setdefault(entry.space, []).append(region)

    def device(self, sent_from: str) -> str:
        """Return the device for memory that the sender has on ``sent_from``."""
        return CPU if sent_from == CPU else self._gpu()

    def find(self, space: str, address: int) -> tuple[MappedRegion, int]:
        """Return the region that contains ``address`` of ``space``, and the offset in it."""
        starts = self._starts[space]
        index = bisect.bisect_right(starts, address) - 1
        return self._regions[space][index], address - starts[index]

    def buffers(self, entries: Sequence[BufferEntry]) -> Iterator[memoryview]:
        """Yield the out-of-band buffers of a pickle in order."""
        for space, address, nbytes in entries:
            region, offset = self.find(space, address)
            yield region.buffer()[offset : offset + nbytes]


def map_regions(
    entries: Sequence[BlockEntry], blocks: Sequence[memoryview], device: str
) -> AddressSpace:
    """Return the regions of a mapped bundle; blocks of a GPU are copied to ``device``."""
    pairs = zip(entries, blocks, strict=True)
    regions = [MappedRegion(raw, CPU if entry.device == CPU else device) for entry, raw in pairs]
    return AddressSpace(entries, regions, lambda: device)


def address_of(raw: memoryview) -> int:
    """Return the address of the first byte of ``raw``."""
    return int(np.frombuffer(raw, np.uint8).__array_interface__["data"][0])
