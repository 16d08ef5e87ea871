"""Restores a rank's result: values to bind, and new states of the notebook's objects."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbmgpu.system.gc_pause import gc_paused

from . import container
from .address_space import (
    BUNDLE_SPACE,
    AddressSpace,
    BlockEntry,
    MappedRegion,
    OwnedRegion,
    address_of,
    load_table,
)
from .bundle import Bundle
from .flat_encoding import loads_flat
from .memory_blocks import CPU, Block
from .object_state import State, has_data
from .pickle_errors import path_to
from .placeholders import FallbackUnpickler, TolerantUnpickler, is_placeholder
from .state_setters import IsNotebookMemory, restore_order, set_state
from .tensor_views import load_context

Values = dict[str, Any]
States = list[tuple[Any, State]]


@dataclass(frozen=True)
class RestoredResult:
    """A restored result.

    Attributes:
        values: what to bind in the notebook, by name.
        lost: what could not be pickled or unpickled, by name or path, with the reason.
        header: the header that the rank has written.
        refused: objects of the notebook that could not take their new state, with the reason.
    """

    values: dict[str, Any]
    lost: dict[str, str]
    header: Any
    refused: dict[str, str]


class UnreadableError(ValueError):
    """A result cannot be read; nothing has been changed."""


class _ResultUnpickler(TolerantUnpickler):
    """Resolves tokens to the notebook's own objects."""

    def __init__(
        self, stream: memoryview, buffers: Iterable[memoryview], originals: dict[int, Any]
    ) -> None:
        super().__init__(stream, buffers)
        self._originals = originals

    def persistent_load(self, index: int) -> Any:
        return self.tolerant(self._originals[index])


def _read(
    load: Callable[[], Any], originals: dict[int, Any], fallback: bool = False
) -> tuple[dict[str, Any], dict[str, str], Values, States]:
    """Load the header, what is lost, and all values and states.

    With ``fallback``, new names are lost if one of them still cannot be loaded.
    """
    header, lost = load()
    values, states = _part(load, originals)
    new = load()
    try:
        new_values, new_states = _part(load, originals, new)
    except Exception as error:
        if not fallback:
            raise
        reason = f"it cannot be read in the notebook: {type(error).__name__}: {error}"
        return header, lost | dict.fromkeys(new, reason), values, states
    return header, lost, values | new_values, states + new_states


def _part(
    load: Callable[[], Any], originals: dict[int, Any], names: list[str] | None = None
) -> tuple[Values, States]:
    """Load named values, and the states that follow them."""
    names = load() if names is None else names
    return {name: load() for name in names}, list(_states(load, originals))


def _states(load: Callable[[], Any], originals: dict[int, Any]) -> Iterator[tuple[Any, State]]:
    """Yield the notebook's objects with their new states."""
    while not isinstance(entry := load(), bytes):
        index, state = entry
        yield originals[index], state
    yield from loads_flat(entry, originals)


class _NotebookRegion(MappedRegion):
    """A block of the notebook's own memory, with the bytes that were sent back for it."""

    def __init__(self, raw: memoryview, block: Block) -> None:
        super().__init__(raw)
        self._block = block
        self._storages = [s for s in block.owners.values() if hasattr(s, "data_ptr")]
        self.addresses = block.address, block.address + block.nbytes
        if not self._is_covered(map(_extent, block.owners.values())):
            raise ValueError("a tensor or array has been resized while the cell ran")
        self.written = {storage.data_ptr() for storage in self._storages if raw.nbytes}

    def _is_covered(self, extents: Iterable[tuple[int, int]]) -> bool:
        """Whether the memory of the block is still that of its owners, all of it."""
        reached, end = self.addresses
        for low, high in sorted(extents):
            reached = max(reached, high) if low <= reached else reached
        return reached >= end

    def overwrite(self) -> None:
        """Copy the bytes that were sent back, if any, into the notebook's memory."""
        if not self.raw.nbytes:
            return
        if self._block.device == CPU:
            self._block.bytes()[:] = self.raw
        else:
            import torch

            self._block.as_device_tensor().copy_(torch.frombuffer(self.raw, dtype=torch.uint8))

    def buffer(self) -> memoryview:
        return self._block.bytes()

    def storage(self, offset: int, nbytes: int, item: int) -> tuple[Any, int]:
        low = self._block.address + offset
        for storage in self._storages:
            start = storage.data_ptr()
            inside = start <= low and low + nbytes <= start + storage.nbytes()
            if inside and (low - start) % item == 0:
                return storage, low - start
        self.raw = self.buffer()  # memory of an array: create a storage over it
        return super().storage(offset, nbytes, item)


def _regions(
    opened: container.Container, entries: list[BlockEntry], bundle: Bundle
) -> list[MappedRegion]:
    """Return the regions of a result, with bytes from the result or from the bundle.

    Stops tracking writes to the notebook's memory that will be overwritten.

    Raises:
        ValueError: a part is missing, or memory of the notebook has been resized.
    """
    numbers = [_block_number(entry) if entry.in_bundle else None for entry in entries]
    blocks = opened.blocks
    if any(number is not None for number in numbers):
        there = bundle.rewritten()
        pairs = zip(numbers, blocks, strict=True)
        blocks = [raw if number is None else there[number] for number, raw in pairs]
    for entry, raw in zip(entries, blocks, strict=True):
        if entry.space.startswith(BUNDLE_SPACE) and raw.nbytes:
            bundle.untrack(bundle.table.blocks[_block_number(entry)])
    if blocks is not opened.blocks:
        bundle.accept_rewritten()
    return [
        _notebook_region(entry, raw, bundle) for entry, raw in zip(entries, blocks, strict=True)
    ]


def _block_number(entry: BlockEntry) -> int:
    return int(entry.space.removeprefix(BUNDLE_SPACE))


def _notebook_region(entry: BlockEntry, raw: memoryview, bundle: Bundle) -> MappedRegion:
    if entry.space.startswith(BUNDLE_SPACE):
        block = bundle.table.blocks[_block_number(entry)]
        return _NotebookRegion(raw, block)
    device = CPU if entry.device == CPU else _notebook_gpu(bundle)
    if device != CPU:
        return MappedRegion(raw, device)
    return OwnedRegion(raw, entry.low)


def _notebook_gpu(bundle: Bundle) -> str:
    """Return the notebook's device for tensors that the cell has created on a GPU.

    Called only when needed, because torch creates a CUDA context to answer.
    """
    import torch

    from nbmgpu.environment.accelerator import accelerator_type

    used = [block.device for block in bundle.table.blocks if block.device != CPU]
    return min(used) if used else accelerator_type() if torch.accelerator.is_available() else CPU


@gc_paused()
def restore_result(path: str, bundle: Bundle) -> RestoredResult:
    """Read a result and update the notebook's objects in place; return what is to be bound.

    Raises:
        UnreadableError: the rank could not write its result, or it does not fit the notebook's
            memory.
    """
    try:
        opened = container.read(path)
        entries, buffers = load_table(opened.table)
        regions = _regions(opened, entries, bundle)
    except (OSError, ValueError) as error:
        raise UnreadableError(str(error)) from error
    for region in regions:
        if isinstance(region, _NotebookRegion):
            region.overwrite()
    memory = AddressSpace(entries, regions, functools.partial(_notebook_gpu, bundle))
    unpickler = _ResultUnpickler(opened.stream, memory.buffers(buffers), bundle.originals)
    with load_context(memory, bundle.namespace):
        try:
            header, lost, values, states = _read(unpickler.load, bundle.originals)
        except Exception:  # an object cannot be constructed in this process
            fallback = FallbackUnpickler(opened.stream, memory.buffers(buffers), unpickler)
            header, lost, values, states = _read(fallback.load, bundle.originals, fallback=True)
        for name in [name for name, value in values.items() if is_placeholder(value)]:
            lost = lost | {name: values.pop(name).reason}
        lost = lost | {path: kind.reason for path, kind in unpickler.placeholders.items()}
        _count_versions(states, regions)
        names = {name: bundle.namespace.get(name) for name in bundle.sizes}
        refused = _restore_states(states, names, _notebook_memory_test(regions))
    return RestoredResult(values, lost, header, refused)


def _count_versions(states: list[tuple[Any, State]], regions: list[MappedRegion]) -> None:
    """Increment autograd's version counter of the notebook's tensors that have been overwritten."""
    import torch

    written: set[int] = set().union(*(a.written for a in regions if isinstance(a, _NotebookRegion)))
    plain = torch.Tensor.__torch_dispatch__  # other subclasses wrap tensors
    for obj, (kind, *_) in states if written else ():
        if kind != "tensor" or not has_data(obj) or obj.is_inference():
            continue
        if type(obj).__torch_dispatch__ is not plain:
            continue
        if obj.layout is torch.strided and obj.untyped_storage().data_ptr() in written:
            torch.autograd.graph.increment_version(obj)


def _notebook_memory_test(regions: list[MappedRegion]) -> IsNotebookMemory:
    """Return a function that tells whether a tensor is in the notebook's memory."""
    import torch

    spans = sorted(region.addresses for region in regions if isinstance(region, _NotebookRegion))

    def is_notebook_memory(tensor: Any) -> bool:
        if tensor.layout is not torch.strided or not tensor.numel():
            return False
        at = bisect.bisect_right(spans, (tensor.data_ptr(), float("inf"))) - 1
        return at >= 0 and bool(tensor.data_ptr() < spans[at][1])

    return is_notebook_memory


def _restore_states(
    states: list[tuple[Any, State]], names: Mapping[str, Any], is_notebook_memory: IsNotebookMemory
) -> dict[str, str]:
    """Set the states of the notebook's objects; return those that failed, with the reason."""
    refused: dict[str, str] = {}
    for obj, state in sorted(states, key=lambda entry: restore_order(*entry)):
        try:
            set_state(obj, state, is_notebook_memory)
        except Exception as error:
            refused[path_to(obj, names)] = f"{type(error).__name__}: {error}"
    return refused


def _extent(owner: Any) -> tuple[int, int]:
    """Return the first address of a storage, array or buffer, and the one behind its last byte."""
    if isinstance(owner, np.ndarray):
        return np.lib.array_utils.byte_bounds(owner)
    if isinstance(owner, memoryview):
        low = address_of(owner)
        return low, low + owner.nbytes
    start: int = owner.data_ptr()
    return start, start + owner.nbytes()
