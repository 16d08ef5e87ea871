"""``optimizer.state`` of which every rank holds a part, and which reads as if it were whole."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor

State = dict[Any, Any]


class SpreadStates(defaultdict[Any, State]):
    """The states of an optimizer, by parameter, of which this rank keeps its own parameters'.

    During a step it is just that.  Whoever else looks at it (the cell, ``state_dict()``,
    ``pickle``, ``deepcopy``) finds it whole: all ranks run the same cell, so all look
    at the same time, and send each other what they hold.  ``dict.values(state)`` and
    the like show what the rank holds.
    """

    def __init__(self, states: State, parameters: list[Tensor], own: list[Tensor]) -> None:
        """Hold ``states``, those of all ``parameters``, of which this rank keeps ``own``."""
        super().__init__(dict, states)
        self.parameters = parameters
        self.foreign = {id(p) for p in parameters} - {id(p) for p in own}
        self.whole = True
        self._stepping = False
        self._steps = 0
        self._births = {id(key): n - len(states) for n, key in enumerate(states)}
        self._dropped: WeakValueDictionary[tuple[int, str], Tensor] = WeakValueDictionary()

    @contextmanager
    def narrowed(self) -> Iterator[None]:
        """Be the rank's own part for the time of a step."""
        if self.whole:
            self._drop()
        self.whole, before, self._stepping = False, self._stepping, True
        try:
            yield
        finally:
            self._stepping = before
            self._steps += 1
            for key in dict.keys(self):
                self._births.setdefault(id(key), self._steps)

    def _drop(self) -> None:
        """Let go of what other ranks keep, and remember what the cell itself may still hold.

        After ``load_state_dict(saved)``, ``saved`` and the states share their tensors.
        """
        for key in [key for key in dict.keys(self) if id(key) in self.foreign]:
            for name, value in dict.pop(self, key).items():
                if isinstance(value, torch.Tensor):
                    self._dropped[id(key), name] = value

    @contextmanager
    def as_cell_sees_it(self) -> Iterator[None]:
        """Be whole to whoever looks, in the middle of a step: in a closure."""
        before, self._stepping = self._stepping, False
        try:
            yield
        finally:
            self._stepping = before
            if before and self.whole:
                with self.narrowed():
                    pass

    def collect(self, to: int | None = None) -> None:
        """Bring all entries to rank ``to``, or to every rank; collective.

        On other ranks nothing changes.
        """
        if self.whole:
            return
        place = {id(p): i for i, p in enumerate(self.parameters)}
        entries = list(dict.items(self))
        mine = [(self._births[id(k)], place[id(k)], v) for k, v in entries if id(k) in place]
        parts = exchange(mine, to)
        if to is not None and dist.get_rank() != to:
            return
        dict.clear(self)
        every = [entry for part in parts for entry in part]
        for birth, i, state in sorted(every, key=lambda entry: entry[:2]):  # as one device has them
            key = self.parameters[i]
            self._births[id(key)] = birth
            dict.__setitem__(self, key, self._revived(id(key), state))
        dict.update(self, [(key, state) for key, state in entries if id(key) not in place])
        self.whole = True

    def _revived(self, key: int, state: State) -> State:
        """Return ``state`` with its values in tensors that were dropped and are still held."""
        for name, value in state.items():
            held = self._dropped.get((key, name))
            if held is not None and held is not value and held.shape == value.shape:
                state[name] = held.copy_(value)
        return state

    def _look(self) -> None:
        if not self._stepping:
            self.collect()

    def plain(self) -> defaultdict[Any, State]:
        """Return what is here as the kind of dictionary that torch's optimizers have."""
        states: defaultdict[Any, State] = defaultdict(dict)
        states.update({key: dict.__getitem__(self, key) for key in dict.keys(self)})
        return states

    def copy(self) -> defaultdict[Any, State]:  # type: ignore[override]
        """Return a plain dictionary of everything."""
        self._look()
        return self.plain()

    __copy__ = copy  # type: ignore[assignment]

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Travel as a plain dictionary of everything."""
        self._look()
        return self.plain().__reduce__()


def _looking(name: str) -> Callable[..., Any]:
    """Return a method of dictionaries that looks at everything."""
    method = getattr(defaultdict, name)

    def looking(states: SpreadStates, *args: Any, **kwargs: Any) -> Any:
        states._look()
        return method(states, *args, **kwargs)

    looking.__name__ = name
    return looking


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__",
    "__repr__", "get", "keys", "values", "items", "pop", "popitem", "clear", "setdefault", "update",
):  # fmt: skip
    setattr(SpreadStates, _name, _looking(_name))


def exchange(mine: Any, to: int | None = None) -> list[Any]:
    """Send ``mine`` to rank ``to``, or to every rank; collective.

    Dense tensors travel as such and arrive on the device they were on, each in turn, so
    that no rank needs memory for more than it keeps.  The rest is pickled.

    Returns:
        What the ranks gave, by rank; this rank's is ``mine`` itself.  Empty on ranks
        other than ``to``.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(mine)
    packed: list[Any] = [None] * size
    dist.all_gather_object(packed, (file.getvalue(), packer.shapes))
    parts: list[Any] = []
    for owner, (data, shapes) in enumerate(packed):
        if owner == rank:
            _send(packer.tensors, rank, to)
            parts.append(mine)
        elif to is None or rank == to:
            tensors = [_receive(shape, owner, to) for shape in shapes]
            parts.append(_Unpacker(io.BytesIO(data), tensors).load())
    return parts if to is None or rank == to else []


def _send(tensors: list[Tensor], rank: int, to: int | None) -> None:
    for tensor in tensors:
        if to is None:
            dist.broadcast(tensor.contiguous(), rank)
        elif rank != to:
            dist.send(tensor.contiguous(), to)


def _receive(shape: tuple[Any, ...], owner: int, to: int | None) -> Tensor:
    size, dtype, device = shape
    tensor = torch.empty(size, dtype=dtype, device=device)
    if to is None:
        dist.broadcast(tensor, owner)
    else:
        dist.recv(tensor, owner)
    return tensor


class _Packer(pickle.Pickler):
    """Pickles all but dense tensors, which it gathers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self.shapes: list[tuple[Any, ...]] = []

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return None
        self.tensors.append(obj.detach())
        self.shapes.append((tuple(obj.shape), obj.dtype, str(obj.device)))
        return len(self.tensors) - 1


class _Unpacker(pickle.Unpickler):
    """Unpickles what a ``_Packer`` made, given the tensors."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        return self.tensors[pid]
