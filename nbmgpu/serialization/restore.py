"""The end of the way back: what a rank has sent becomes the state of the notebook's objects."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import container
from .flat_states import unpacked
from .gc_pause import uncollected
from .mapped_memory import HOME, Area, BlockEntry, Memory, OwnedArea, load_table
from .memory_blocks import CPU, Block
from .object_state import State, has_data
from .pickle_errors import path_to
from .placeholders import CarefulUnpickler, TolerantUnpacker, is_absent
from .set_state import IsHome, put_state, put_turn
from .tensor_views import loading
from .transfer import Shipment

Values = dict[str, Any]
States = list[tuple[Any, State]]


@dataclass(frozen=True)
class Returned:
    """What came back: ``values`` to bind, ``lost`` names with the reason, a small ``header``.

    ``lost`` has what could not leave the rank, by name or path; ``refused`` the
    notebook's objects that would not take their new state.
    """

    values: dict[str, Any]
    lost: dict[str, str]
    header: Any
    refused: dict[str, str]


class UnreadableError(ValueError):
    """A result cannot be read; nothing has been changed."""


class _ReturnUnpacker(TolerantUnpacker):
    """Resolves tokens to the notebook's own objects."""

    def __init__(
        self, stream: memoryview, buffers: Iterable[memoryview], originals: dict[int, Any]
    ) -> None:
        super().__init__(stream, buffers)
        self._originals = originals

    def persistent_load(self, index: int) -> Any:
        return self.tolerant(self._originals[index])


def _read(
    load: Callable[[], Any], originals: dict[int, Any], careful: bool = False
) -> tuple[dict[str, Any], dict[str, str], Values, States]:
    """Load all: the header, what is lost, values and states of what came, and of what is new.

    New names are lost where even a ``careful`` reader finds one that it cannot load.
    """
    header, lost = load()
    values, states = _part(load, originals)
    new = load()
    try:
        new_values, new_states = _part(load, originals, new)
    except Exception as error:
        if not careful:
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
    yield from unpacked(entry, originals)


class _HomeArea(Area):
    """Memory of the notebook itself, with the bytes that came back for it."""

    def __init__(self, raw: memoryview, block: Block) -> None:
        super().__init__(raw)
        self._block = block
        owners = block.owners.values()
        self._storages = [s for s in owners if hasattr(s, "data_ptr")]
        arrays = [owner for owner in owners if isinstance(owner, np.ndarray)]
        if not all(map(self._holds, self._storages)) or not all(map(self._is_in, arrays)):
            raise ValueError("a tensor or array has been resized while the cell ran")
        self.place = block.low, block.high
        self.written = {storage.data_ptr() for storage in self._storages if raw.nbytes}

    def _holds(self, storage: Any) -> bool:
        start, block = storage.data_ptr(), self._block
        return bool(start < block.high and block.low < start + storage.nbytes())

    def _is_in(self, array: np.ndarray[Any, Any]) -> bool:
        low, high = np.lib.array_utils.byte_bounds(array)
        return bool(low < self._block.high and self._block.low < high)

    def overwrite(self) -> None:
        """Put the bytes that came back into the notebook's memory, if there are any."""
        if not self.raw.nbytes:
            return
        if self._block.device == CPU:
            self._block.bytes()[:] = self.raw
        else:
            import torch

            self._block.on_device().copy_(torch.frombuffer(self.raw, dtype=torch.uint8))

    def buffer(self) -> memoryview:
        return self._block.bytes()

    def storage(self, offset: int, nbytes: int, item: int) -> tuple[Any, int]:
        low = self._block.low + offset
        for storage in self._storages:
            start = storage.data_ptr()
            inside = start <= low and low + nbytes <= start + storage.nbytes()
            if inside and (low - start) % item == 0:
                return storage, low - start
        self.raw = self.buffer()  # an array's: a storage is laid over it
        return super().storage(offset, nbytes, item)


def _areas(box: container.Container, entries: list[BlockEntry], shipment: Shipment) -> list[Area]:
    """Return the blocks of a result, with their bytes wherever these have come.

    The notebook's memory that is to be written over is watched no more from here on.

    Raises:
        ValueError: a part is missing, or finds no place here.
    """
    numbers = [_number_at_home(entry) if entry.in_bundle else None for entry in entries]
    blocks = box.blocks
    if any(number is not None for number in numbers):
        there = shipment.rewritten()
        pairs = zip(numbers, blocks, strict=True)
        blocks = [raw if number is None else there[number] for number, raw in pairs]
    for entry, raw in zip(entries, blocks, strict=True):
        if entry.space.startswith(HOME) and raw.nbytes:
            shipment.leave(shipment.table.blocks[_number_at_home(entry)])
    if blocks is not box.blocks:
        shipment.accept_rewritten()
    return [_area_at_home(entry, raw, shipment) for entry, raw in zip(entries, blocks, strict=True)]


def _number_at_home(entry: BlockEntry) -> int:
    return int(entry.space.removeprefix(HOME))


def _area_at_home(entry: BlockEntry, raw: memoryview, shipment: Shipment) -> Area:
    if entry.space.startswith(HOME):
        block = shipment.table.blocks[_number_at_home(entry)]
        return _HomeArea(raw, block)
    device = CPU if entry.device == CPU else _gpu_at_home(shipment)
    if device != CPU:
        return Area(raw, device)
    return OwnedArea(raw, entry.low)


def _gpu_at_home(shipment: Shipment) -> str:
    """Return the notebook's device for what the cell has made on a GPU.

    Nobody else is to ask: torch opens a GPU here for the answer, where none may be in use.
    """
    import torch

    used = [block.device for block in shipment.table.blocks if block.device != CPU]
    return min(used) if used else "cuda" if torch.cuda.is_available() else CPU


@uncollected()
def adopt(path: str, shipment: Shipment) -> Returned:
    """Read a result: update the notebook's objects in place, return what is to be bound.

    Raises:
        UnreadableError: the rank did not get to write its result, or it finds no place here.
    """
    try:
        box = container.read(path)
        entries, buffers = load_table(box.table)
        areas = _areas(box, entries, shipment)
    except (OSError, ValueError) as error:
        raise UnreadableError(str(error)) from error
    for area in areas:
        if isinstance(area, _HomeArea):
            area.overwrite()
    memory = Memory(entries, areas, functools.partial(_gpu_at_home, shipment))
    unpacker = _ReturnUnpacker(box.stream, memory.buffers(buffers), shipment.originals)
    with loading(memory, shipment.namespace):
        try:
            header, lost, values, states = _read(unpacker.load, shipment.originals)
        except Exception:  # something cannot be made here, that needs what only ranks have
            careful = CarefulUnpickler(box.stream, memory.buffers(buffers), unpacker)
            header, lost, values, states = _read(careful.load, shipment.originals, careful=True)
        for name in [name for name, value in values.items() if is_absent(value)]:
            lost = lost | {name: values.pop(name).reason}
        lost = lost | {path: kind.reason for path, kind in unpacker.absent.items()}
        _count_versions(states, areas)
        names = {name: shipment.namespace.get(name) for name in shipment.sizes}
        refused = _put_states(states, names, _home(areas))
    return Returned(values, lost, header, refused)


def _count_versions(states: list[tuple[Any, State]], areas: list[Area]) -> None:
    """Tell autograd which of the notebook's tensors have been written to."""
    import torch

    written: set[int] = set().union(*(a.written for a in areas if isinstance(a, _HomeArea)))
    plain = torch.Tensor.__torch_dispatch__  # others have no memory of their own
    for obj, (kind, *_) in states if written else ():
        if kind != "tensor" or not has_data(obj) or obj.is_inference():
            continue
        if type(obj).__torch_dispatch__ is not plain:
            continue
        if obj.layout is torch.strided and obj.untyped_storage().data_ptr() in written:
            torch.autograd.graph.increment_version(obj)


def _home(areas: list[Area]) -> IsHome:
    """Return what tells whether a tensor lies in the notebook's memory."""
    import torch

    spans = sorted(area.place for area in areas if isinstance(area, _HomeArea))

    def is_home(tensor: Any) -> bool:
        if tensor.layout is not torch.strided or not tensor.numel():
            return False
        at = bisect.bisect_right(spans, (tensor.data_ptr(), float("inf"))) - 1
        return at >= 0 and bool(tensor.data_ptr() < spans[at][1])

    return is_home


def _put_states(
    states: list[tuple[Any, State]], names: Mapping[str, Any], is_home: IsHome
) -> dict[str, str]:
    """Give the notebook's objects their states; return those that refused, with the reason."""
    refused: dict[str, str] = {}
    for obj, state in sorted(states, key=lambda entry: put_turn(*entry)):
        try:
            put_state(obj, state, is_home)
        except Exception as error:
            refused[path_to(obj, names)] = f"{type(error).__name__}: {error}"
    return refused
