"""The way back: from a rank's namespace into the notebook's own objects.

An object that came in the bundle is never sent as a copy.  A token stands for
it, the memo index by which the kernel knows it, and its new *state* follows
behind; the kernel puts that state into its own object.  So ``model`` stays the
same ``model``, whoever else holds it.  Memory goes back only where its bytes
changed, and lands in the notebook's own memory.
"""

from __future__ import annotations

import collections
import copyreg
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import container
from .blocks import CPU, Block, BlockTable, untyped_bytes, view_memory
from .codec import (
    Memory,
    Packer,
    Unpacker,
    block_table,
    loading,
    read_block_table,
)
from .shipping import Received, Shipment

IMMUTABLE = (str, bytes, int, float, complex, bool, type(None), tuple, frozenset, range, slice)
BY_REFERENCE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class _KnownBlocks(BlockTable):
    """Blocks that recognise the memory that came with a bundle, changed or not."""

    def __init__(self, received: Received) -> None:
        super().__init__()
        self._memory = received.memory
        self._known = {(device, address): i for i, address, device in received.memory.known()}
        self._before = container.read(received.path).blocks

    def index(self, address: int, nbytes: int, device: str, owner: Any) -> int:
        origin = self._known.get((device, address))
        count = len(self.blocks)
        index = super().index(address, nbytes, device, owner)
        if origin is not None and index == count:
            block = self.blocks[index]
            block.origin = origin
            block.low, block.high = 0, self._memory.raw[origin].nbytes
            block.unchanged = _same_bytes(block, self._before[origin])
        return index


def _same_bytes(block: Block, before: memoryview) -> bool:
    now = memoryview(block.bytes())
    if now.nbytes != before.nbytes:
        return False
    a, b = np.frombuffer(now, np.uint8), np.frombuffer(before, np.uint8)
    step = 1 << 22  # compared piecewise: a trained parameter differs in its first piece
    return all(np.array_equal(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step))


class _ReturnPacker(Packer):
    """Replaces objects that came in the bundle by tokens, and queues their states."""

    def __init__(self, namespace: dict[str, Any], received: Received) -> None:
        super().__init__(namespace)
        self.blocks = _KnownBlocks(received)
        self._known = received.known
        self._queued: set[int] = set()
        self.queue: collections.deque[tuple[int, Any]] = collections.deque()

    def persistent_id(self, obj: Any) -> int | None:
        index = self._known.get(id(obj))
        if index is None or isinstance(obj, IMMUTABLE):
            return None
        if not isinstance(obj, BY_REFERENCE):
            if not has_state(obj):
                return None
            if index not in self._queued:
                self._queued.add(index)
                self.queue.append((index, obj))
        return index

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            # The notebook's own names stay: the function finds them there.
            reduced[2][1]["__globals__"] = {}
        elif type(obj).__module__.startswith("torch") and isinstance(reduced, tuple):
            tensor = _detached(obj)
            return reduced if tensor is obj else super().reducer_override(tensor)
        return reduced

    def dump_queue(self) -> None:
        """Write the states of all objects met so far, and of those met in doing so."""
        while self.queue:
            index, obj = self.queue.popleft()
            self.dump((index, state_of(obj)))
        self.dump(None)


def _detached(obj: Any) -> Any:
    """Return a result of autograd without its graph, which cannot leave the rank."""
    import torch

    return obj.detach() if isinstance(obj, torch.Tensor) and not obj.is_leaf else obj


def has_state(obj: Any) -> bool:
    """Tell whether ``obj`` can be changed in place through a state."""
    if isinstance(obj, np.ndarray) or _is_tensor(obj):
        return True
    if type(obj) in (list, dict, set, bytearray, collections.deque):
        return True
    reduced = _reduce(obj)
    if reduced is None:
        return False
    state, items, pairs = (*reduced[2:5], None, None, None)[:3]
    rebuilt_whole = reduced[0] in (copyreg.__newobj__, copyreg.__newobj_ex__)  # type: ignore[attr-defined]
    return state is not None or items is not None or pairs is not None or rebuilt_whole


def _reduce(obj: Any) -> Any:
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception:
        return None  # not picklable; whoever pickles it will say why
    return reduced if isinstance(reduced, tuple) else None


def _is_tensor(obj: Any) -> bool:
    import torch

    return isinstance(obj, torch.Tensor)


def state_of(obj: Any) -> tuple[Any, ...]:
    """Return what ``put_state`` needs to make another object like ``obj``."""
    if type(obj) in (list, set, collections.deque):
        return "items", list(obj)
    if type(obj) is dict:
        return "pairs", list(obj.items())
    if type(obj) is bytearray:
        return "bytes", bytes(obj)
    if isinstance(obj, np.ndarray):
        return "array", obj.view()
    if _is_tensor(obj):
        grad = obj.grad if obj.is_leaf else None
        return "tensor", obj.detach(), obj.requires_grad and obj.is_leaf, grad, dict(obj.__dict__)
    _, _, *rest = _reduce(obj)
    state, items, pairs = (*rest, None, None, None)[:3]
    return "object", state, items and list(items), pairs and list(pairs)


def put_state(obj: Any, state: tuple[Any, ...]) -> None:
    """Give ``obj`` the state that ``state_of`` took from its other self."""
    match state:
        case ("items", items):
            obj.clear()
            (obj.update if isinstance(obj, set) else obj.extend)(items)
        case ("pairs", pairs):
            obj.clear()
            obj.update(pairs)
        case ("bytes", data):
            obj[:] = data
        case ("array", array):
            if not np.shares_memory(obj, array) and obj.flags.writeable:
                obj[...] = array
        case ("tensor", data, requires_grad, grad, extra):
            _put_tensor(obj, data, requires_grad, grad, extra)
        case ("object", inner, items, pairs):
            _put_object(obj, inner, items, pairs)


def _put_tensor(obj: Any, data: Any, requires_grad: bool, grad: Any, extra: dict[str, Any]) -> None:
    import torch

    same = (
        obj.data_ptr() == data.data_ptr()
        and obj.shape == data.shape
        and obj.stride() == data.stride()
        and obj.dtype == data.dtype
        and obj.device == data.device
    )
    if same:
        torch.autograd.graph.increment_version(obj)
    elif obj.shape == data.shape and obj.dtype == data.dtype:
        with torch.no_grad():
            obj.copy_(data)
    else:
        obj.data = data
    if obj.is_leaf:
        if obj.requires_grad != requires_grad:
            obj.requires_grad_(requires_grad)
        obj.grad = grad
    obj.__dict__.update(extra)


def _put_object(obj: Any, state: Any, items: Any, pairs: Any) -> None:
    if items is not None:
        obj.clear()
        obj.extend(items)
    if pairs is not None:
        obj.clear()
        obj.update(pairs)
    if hasattr(type(obj), "__setstate__"):
        if state is not None:
            obj.__setstate__(state)
        return
    plain, slots = state if isinstance(state, tuple) else (state, None)
    if hasattr(obj, "__dict__"):
        for key in obj.__dict__.keys() - (plain or {}).keys():
            del obj.__dict__[key]
        obj.__dict__.update(plain or {})
    for key, value in (slots or {}).items():
        object.__setattr__(obj, key, value)


@dataclass(frozen=True)
class Returned:
    """What came back: ``values`` to bind, ``lost`` names with the reason, a small ``header``."""

    values: dict[str, Any]
    lost: dict[str, str]
    header: dict[str, Any]


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
        The names that cannot be pickled, with the reason; they are left out.
    """
    wanted = [name for name in names if name in namespace]
    lost: dict[str, str] = {}
    try:
        packer = _packed(namespace, wanted, header, lost, received, home)
    except Exception:
        for name in wanted:  # one of them cannot be pickled: find out which, and go without
            try:
                _packed(namespace, [name], {}, {}, received, home)
            except Exception as error:
                lost[name] = f"{type(error).__name__}: {error}"
        wanted = [name for name in wanted if name not in lost]
        packer = _packed(namespace, wanted, header, lost, received, home)
    blocks = packer.blocks.blocks
    data = [block.bytes() for block in blocks]
    container.write(path, packer.file.getvalue(), block_table(blocks), data)
    return lost


def _packed(
    namespace: dict[str, Any],
    names: list[str],
    header: Mapping[str, Any],
    lost: dict[str, str],
    received: Received,
    home: dict[str, Any],
) -> _ReturnPacker:
    packer = _ReturnPacker(home, received)
    packer.dump((dict(header), names, lost))
    for name in names:
        packer.dump(namespace[name])
    packer.dump_queue()
    return packer


class _ReturnUnpacker(Unpacker):
    """Resolves tokens to the notebook's own objects."""

    def __init__(self, stream: memoryview, originals: dict[int, Any]) -> None:
        super().__init__(stream)
        self._originals = originals

    def persistent_load(self, index: int) -> Any:
        return self._originals[index]

    def states(self) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Yield the notebook's objects with their new states."""
        while (entry := self.load()) is not None:
            index, state = entry
            yield self._originals[index], state


class _HomeMemory(Memory):
    """Blocks of a result: those that came from the notebook are its own memory again."""

    def __init__(self, box: container.Container, home: list[Block]) -> None:
        self._home = home
        super().__init__(box.blocks, read_block_table(box.table), CPU)
        for entry, raw in zip(self.table, self.raw, strict=True):
            if entry.origin is not None and not entry.unchanged:
                _overwrite(home[entry.origin], raw)

    def _own(self, index: int) -> Block | None:
        origin = self.table[index].origin
        return None if origin is None else self._home[origin]

    def low(self, index: int) -> int:
        block = self._own(index)
        return -block.low if block else super().low(index)

    def buffer(self, index: int) -> memoryview:
        block = self._own(index)
        return view_memory(block.address, block.nbytes) if block else super().buffer(index)

    def storage(self, index: int) -> Any:
        block = self._own(index)
        if block is None:
            return super().storage(index)
        if isinstance(block.owner, np.ndarray):
            import torch

            data = torch.frombuffer(self.buffer(index), dtype=torch.uint8)
            return data.untyped_storage()
        return block.owner


def _overwrite(block: Block, data: memoryview) -> None:
    if block.device == CPU:
        view_memory(block.address + block.low, data.nbytes)[:] = data
        return
    import torch

    target = untyped_bytes(block.owner)[block.low : block.low + data.nbytes]
    target.copy_(torch.frombuffer(data, dtype=torch.uint8))


def adopt(path: str, shipment: Shipment) -> Returned:
    """Read a result: update the notebook's objects in place, return what is to be bound.

    Raises:
        ValueError: the rank did not get to write its result.
    """
    box = container.read(path)
    memory = _HomeMemory(box, shipment.blocks)
    unpacker = _ReturnUnpacker(box.stream, shipment.originals)
    with loading(memory, shipment.namespace):
        header, names, lost = unpacker.load()
        values = {name: unpacker.load() for name in names}
        for obj, state in list(unpacker.states()):
            put_state(obj, state)
    return Returned(values, lost, header)


__all__ = ["Returned", "adopt", "has_state", "put_state", "send_back", "state_of"]
