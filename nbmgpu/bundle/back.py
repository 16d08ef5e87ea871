"""The way back: from a rank's namespace into the notebook's own objects.

An object that came in the bundle is never sent as a copy.  A token stands for
it, the memo index by which the kernel knows it, and its new *state* follows
behind; the kernel puts that state into its own object.  So ``model`` stays the
same ``model``, whoever else holds it.  Memory goes back only where its bytes
changed, and lands in the notebook's own memory.
"""

from __future__ import annotations

import bisect
import collections
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ShippingError, compose
from . import container
from .blocks import CPU, Block, BlockTable, untyped_bytes
from .codec import Packer, Unpacker, loading
from .explain import find_culprit, path_to, reason_of
from .memory import Area, BlockEntry, Memory, OwnedArea, load_table
from .shipping import Received, Shipment, write_container
from .states import VALUES, State, is_frozen, put_state, put_turn, state_of, trimmed

HOME = "home"
"""Begins the space of memory that came with the bundle; the block's number there follows."""


class _HomeBlock(Block):
    """A block that came with the bundle; its addresses count from its own first byte."""

    def __init__(self, number: int, area: Area, before: memoryview) -> None:
        super().__init__(f"{HOME} {number}", area.device, 0, before.nbytes, {})
        self.area = area
        self.before = before
        self._changed: bool | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that go back: all or, when they are as they came, none."""
        if self._changed is None:
            self._changed = not _same_bytes(self._now(), self.before)
        return self.high if self._changed else 0

    def bytes(self) -> memoryview:
        return self._now() if self.nbytes else memoryview(b"")

    def _now(self) -> memoryview:
        if self.device == CPU:
            return self.area.raw
        return memoryview(untyped_bytes(self.area.storage(0)[0]).cpu().numpy())


def _same_bytes(now: memoryview, before: memoryview) -> bool:
    a, b = np.frombuffer(now, np.uint8), np.frombuffer(before, np.uint8)
    step = 1 << 20  # compared piecewise: a trained parameter differs in its first piece
    return all(np.array_equal(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step))


class _HomeTable(BlockTable):
    """Blocks that recognise the memory that came with a bundle."""

    def __init__(self, received: Received) -> None:
        super().__init__()
        before = container.read(received.path).blocks
        numbered = enumerate(zip(received.memory.areas, before, strict=True))
        self._home = [_HomeBlock(i, area, raw) for i, (area, raw) in numbered]
        spans = ((block.area.span(), block) for block in self._home)
        self._spans = sorted((s for s in spans), key=lambda entry: entry[0])
        self._starts = [span[:2] for span, _ in self._spans]
        self._used: dict[str, _HomeBlock] = {}

    @property
    def blocks(self) -> list[Block]:
        return [*super().blocks, *self._used.values()]

    def place(self, device: str, low: int, high: int, owner: Any) -> tuple[str, int]:
        at = bisect.bisect_right(self._starts, (device, low)) - 1
        if at >= 0:
            (where, start, end), block = self._spans[at]
            if where == device and high <= end and end - start == block.high:
                self._used[block.space] = block
                return block.space, low - start
        return super().place(device, low, high, owner)

    def forget(self) -> None:
        """Start again, but remember which blocks have changed."""
        self._merged, self._new = [], []
        self._used = {}


class _Unsendable(Exception):
    """Something cannot be pickled; all that can be done without it has been noted."""


@dataclass
class _Outgoing:
    """What is to be sent, and what turned out to be impossible.

    ``without`` holds, for the memo index of an object, the state that can be sent
    in place of its whole state.
    """

    values: dict[str, Any]
    header: dict[str, Any]
    received: Received
    home: dict[str, Any]
    lost: dict[str, str] = field(default_factory=dict)
    without: dict[int, State | None] = field(default_factory=dict)

    def pack(self) -> _ReturnPacker:
        """Pickle all that can be pickled."""
        table = _HomeTable(self.received)
        while True:
            packer = _ReturnPacker(self, table)
            try:
                packer.dump_all()
            except _Unsendable:
                table.forget()
            else:
                return packer

    def state(self, index: int, obj: Any) -> State | None:
        """Return the state of an object that came, as far as it can be sent."""
        if index in self.without:
            return self.without[index]
        return state_of(obj, self.received.classes.get(id(obj)))

    def drop_name(self, name: str) -> None:
        """Note that the value of ``name`` cannot be pickled."""
        value = self.values.pop(name)
        path, culprit = find_culprit(name, value, self.probe)
        where = "" if path == name else f"`{path}`: "
        self.lost[name] = where + reason_of(self.probe(culprit) or PICKLED_ALONE)

    def drop_parts(self, index: int, obj: Any, state: State) -> None:
        """Note what of an object's state cannot be pickled."""
        path = path_to(obj, self.values)
        self.without[index], lost = trimmed(state, self.probe)
        for part, error in lost.items():
            self.lost[f"{path}.{part}"] = reason_of(error)
        if self.without[index] is None:
            self.lost[path] = reason_of(self.probe(state) or PICKLED_ALONE)

    def probe(self, value: Any) -> Exception | None:
        """Return why ``value`` cannot be sent, or None."""
        try:
            _ReturnPacker(self, _HomeTable(self.received)).dump(value)
        except Exception as error:
            return error
        return None


PICKLED_ALONE = ValueError("it cannot be pickled together with the rest")


class _ReturnPacker(Packer):
    """Replaces objects that came in the bundle by tokens, and queues their states."""

    def __init__(self, outgoing: _Outgoing, table: BlockTable) -> None:
        super().__init__(outgoing.home)
        self.blocks = table
        self._outgoing = outgoing
        self._home = outgoing.home
        self._known = outgoing.received.known
        self._copied: set[int] = set()
        self._tokens: set[int] = set()
        self._queue: collections.deque[tuple[int, Any, State]] = collections.deque()

    def persistent_id(self, obj: Any) -> int | None:
        """Return the token of an object that came, None for others."""
        index = self._known.get(id(obj))
        if index is None or index in self._tokens:
            return index
        if index in self._copied or isinstance(obj, VALUES):
            return None
        state = None if is_frozen(obj) else self._outgoing.state(index, obj)
        if state is not None:
            self._queue.append((index, obj, state))
        elif not is_frozen(obj) and index not in self._outgoing.without:
            self._copied.add(index)
            return None
        self._tokens.add(index)
        return index

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and obj.__globals__ is self._home:
            # The notebook's own names stay: the function finds them there.
            reduced[2][1]["__globals__"] = {}
        return reduced

    def dump_all(self) -> None:
        """Write names, values, and the states of all objects met so far or in doing so.

        Raises:
            _Unsendable: something cannot be pickled; without it, another packer may succeed.
        """
        out = self._outgoing
        self.dump((out.header, list(out.values), out.lost))
        for name, value in out.values.items():
            try:
                self.dump(value)
            except Exception:
                out.drop_name(name)
                raise _Unsendable from None
        while self._queue:
            index, obj, state = self._queue.popleft()
            try:
                self.dump((index, state))
            except Exception:
                if index in out.without:
                    raise
                out.drop_parts(index, obj, state)
                raise _Unsendable from None
        self.dump(None)


@dataclass(frozen=True)
class Returned:
    """What came back: ``values`` to bind, ``lost`` names with the reason, a small ``header``.

    ``lost`` has what could not leave the rank, by name or path; ``refused`` the
    notebook's objects that would not take their new state.
    """

    values: dict[str, Any]
    lost: dict[str, str]
    header: dict[str, Any]
    refused: dict[str, str]


def send_back(
    path: str,
    namespace: dict[str, Any],
    names: Iterable[str],
    header: Mapping[str, Any],
    received: Received,
    home: dict[str, Any],
) -> dict[str, str]:
    """Write ``names`` of ``namespace``, and the states of all that came, to ``path``.

    Functions whose globals are ``home``, the rank's own namespace, will have the
    notebook's there.

    Returns:
        What cannot be pickled, by name or path, with the reason; it is left out.
    """
    values = {name: namespace[name] for name in names if name in namespace}
    outgoing = _Outgoing(values, dict(header), received, home)
    packer = outgoing.pack()
    write_container(path, packer.file.getbuffer(), packer.blocks, packer.buffers)
    return outgoing.lost


class _ReturnUnpacker(Unpacker):
    """Resolves tokens to the notebook's own objects."""

    def __init__(
        self, stream: memoryview, buffers: Iterable[memoryview], originals: dict[int, Any]
    ) -> None:
        super().__init__(stream, buffers)
        self._originals = originals

    def persistent_load(self, index: int) -> Any:
        return self._originals[index]

    def states(self) -> Iterator[tuple[Any, State]]:
        """Yield the notebook's objects with their new states."""
        while (entry := self.load()) is not None:
            index, state = entry
            yield self._originals[index], state


class _HomeArea(Area):
    """Memory of the notebook itself, with the bytes that came back for it."""

    def __init__(self, raw: memoryview, block: Block) -> None:
        super().__init__(raw)
        self._block = block
        self._storages = [s for s in block.owners.values() if hasattr(s, "data_ptr")]
        if not all(self._holds(storage) for storage in self._storages):
            raise ValueError("a tensor has been resized in the notebook while the cell ran")
        if raw.nbytes:
            self._overwrite()

    def _holds(self, storage: Any) -> bool:
        start, block = storage.data_ptr(), self._block
        return bool(start < block.high and block.low < start + storage.nbytes())

    def _overwrite(self) -> None:
        if self._block.device == CPU:
            self._block.bytes()[:] = self.raw
        else:
            import torch

            self._block.on_device().copy_(torch.frombuffer(self.raw, dtype=torch.uint8))

    def buffer(self) -> memoryview:
        return self._block.bytes()

    def storage(self, offset: int) -> tuple[Any, int]:
        address = self._block.low + offset
        for storage in self._storages:
            start = storage.data_ptr()
            if start <= address < start + storage.nbytes():
                return storage, address - start
        self.raw = self.buffer()  # an array's: a storage is laid over it
        return super().storage(offset)


def _area_at_home(entry: BlockEntry, raw: memoryview, blocks: list[Block], device: str) -> Area:
    if entry.space.startswith(HOME):
        return _HomeArea(raw, blocks[int(entry.space.removeprefix(HOME))])
    if CPU not in (entry.device, device):
        return Area(raw, device)
    return OwnedArea(raw, entry.low)


def _gpu_at_home(blocks: list[Block]) -> str:
    """Return the notebook's device for what the cell has made on a GPU."""
    import torch

    used = [block.device for block in blocks if block.device != CPU]
    return min(used, default="cuda" if torch.cuda.is_available() else CPU)


def adopt(path: str, shipment: Shipment) -> Returned:
    """Read a result: update the notebook's objects in place, return what is to be bound.

    Raises:
        ValueError: the rank did not get to write its result.
        ShippingError: the notebook cannot make sense of a value.
    """
    box = container.read(path)
    entries, buffers = load_table(box.table)
    blocks = shipment.table.blocks
    device = _gpu_at_home(blocks)
    pairs = zip(entries, box.blocks, strict=True)
    areas = [_area_at_home(entry, raw, blocks, device) for entry, raw in pairs]
    memory = Memory(entries, areas, device)
    unpacker = _ReturnUnpacker(box.stream, memory.buffers(buffers), shipment.originals)
    with loading(memory, shipment.namespace):
        try:
            header, names, lost = unpacker.load()
            values = {name: unpacker.load() for name in names}
            states = list(unpacker.states())
        except Exception as error:
            raise ShippingError(
                compose(
                    "The cell's results cannot be read in the notebook",
                    f"Reason: {type(error).__name__}: {error}",
                    "save them to a file inside the cell, or leave them out with --pull",
                )
            ) from error
        refused = _put_states(
            states, {name: shipment.namespace.get(name) for name in shipment.sizes}
        )
    return Returned(values, lost, header, refused)


def _put_states(states: list[tuple[Any, State]], names: Mapping[str, Any]) -> dict[str, str]:
    """Give the notebook's objects their states; return those that refused, with the reason."""
    refused: dict[str, str] = {}
    for obj, state in sorted(states, key=lambda entry: put_turn(*entry)):
        try:
            put_state(obj, state)
        except Exception as error:
            refused[path_to(obj, names)] = f"{type(error).__name__}: {error}"
    return refused
