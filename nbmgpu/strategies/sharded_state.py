"""``optimizer.state`` that is sharded over ranks, and reads as if it were complete."""

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

from .point_to_point import isend, recv

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

State = dict[Any, Any]

MIN_BYTES = 1024
"""Smaller tensors are sent although the states of other ranks are only described."""


class ShardedStates(defaultdict[Any, State]):
    """The states of an optimizer, by parameter; each rank keeps those of some parameters.

    During a step, this dict holds only its own.  Every other access (the cell, ``state_dict()``,
    ``pickle``, ``deepcopy``) finds all states: all ranks run the same cell, so all access it at the
    same time and exchange what they hold.  ``dict.values(state)`` and the like return what this
    rank holds.
    """

    def __init__(
        self,
        states: State,
        parameters: list[Tensor],
        own: list[Tensor],
        group: ProcessGroup | None = None,
    ) -> None:
        """Hold ``states``, those of all ``parameters``; this rank keeps those of ``own``.

        ``group`` are the ranks over which the states are sharded; None for all.
        """
        super().__init__(dict, states)
        self.parameters = parameters
        self.remote = {id(p) for p in parameters} - {id(p) for p in own}
        self.is_complete = True
        self._group = group
        self._stepping = self._describes = False
        self._steps = 0
        # The step in which each entry was added, so that gathering restores one device's order.
        self._added_at = {id(key): n - len(states) for n, key in enumerate(states)}
        self._dropped: WeakValueDictionary[tuple[int, str], Tensor] = WeakValueDictionary()

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """Hold only this rank's states, for the duration of a step."""
        if self.is_complete:
            self._drop()
        self.is_complete, before, self._stepping = False, self._stepping, True
        try:
            yield
        finally:
            self._stepping = before
            self._steps += 1
            for key in dict.keys(self):
                self._added_at.setdefault(id(key), self._steps)

    def _drop(self) -> None:
        """Drop the states of other ranks; keep weak references to tensors that the cell may hold.

        After ``load_state_dict(saved)``, ``saved`` and the states share their tensors.
        """
        for key in [key for key in dict.keys(self) if id(key) in self.remote]:
            for name, value in dict.pop(self, key).items():
                if isinstance(value, torch.Tensor):
                    self._dropped[id(key), name] = value

    @contextmanager
    def gathered_on_access(self) -> Iterator[None]:
        """Gather on access even during a step: for the cell's closure."""
        before, self._stepping = self._stepping, False
        try:
            yield
        finally:
            self._stepping = before
            if before and self.is_complete:
                with self.local_only():
                    pass

    @contextmanager
    def described_on_access(self) -> Iterator[None]:
        """Let an access find tensors on ``meta`` in place of large ones of other ranks; collective.

        Where the cell still holds tensors of a rank, which an access brings up to date, it finds
        the tensors themselves.
        """
        if self.is_complete or self._are_held():
            yield
            return
        self._describes = True
        try:
            yield
        finally:
            self._describes = self.is_complete = False
            for key in [key for key in dict.keys(self) if id(key) in self.remote]:
                dict.pop(self, key)

    def _are_held(self) -> bool:
        """Return whether the cell of any rank holds tensors that were dropped."""
        held: list[Any] = [False] * dist.get_world_size(self._group)
        dist.all_gather_object(held, bool(self._dropped), self._group)
        return any(held)

    def gather(self, dst: int | None = None) -> None:
        """Gather all entries on rank ``dst`` of the group, or on every rank; collective.

        On other ranks nothing changes.
        """
        if self.is_complete:
            return
        index = {id(p): i for i, p in enumerate(self.parameters)}
        entries = list(dict.items(self))
        mine = [(self._added_at[id(k)], index[id(k)], v) for k, v in entries if id(k) in index]
        parts = gather_objects(mine, self._group, dst, self._describes)
        if dst is not None and dist.get_rank(self._group) != dst:
            return
        dict.clear(self)
        every = [entry for part in parts for entry in part]
        for added_at, i, state in sorted(
            every, key=lambda entry: entry[:2]
        ):  # in one device's order
            key = self.parameters[i]
            self._added_at[id(key)] = added_at
            dict.__setitem__(self, key, self._restore_tensors(id(key), state))
        dict.update(self, [(key, state) for key, state in entries if id(key) not in index])
        self.is_complete = True

    def _restore_tensors(self, key: int, state: State) -> State:
        """Return ``state`` with its values in the dropped tensors that the cell still holds."""
        for name, value in state.items() if not self._describes else ():
            held = self._dropped.get((key, name))
            if held is not None and held is not value and held.shape == value.shape:
                state[name] = held.copy_(value)
        return state

    def _on_access(self) -> None:
        if not self._stepping:
            self.gather()

    def plain(self) -> defaultdict[Any, State]:
        """Return what this rank holds now, in the type of dict that torch's optimizers have."""
        states: defaultdict[Any, State] = defaultdict(dict)
        states.update({key: dict.__getitem__(self, key) for key in dict.keys(self)})
        return states

    def copy(self) -> defaultdict[Any, State]:  # type: ignore[override]
        """Return a plain dict of all states."""
        self._on_access()
        return self.plain()

    __copy__ = copy  # type: ignore[assignment]

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle as a plain dict of all states."""
        self._on_access()
        return self.plain().__reduce__()


def _gathering(name: str) -> Callable[..., Any]:
    """Return the dict method ``name``, which gathers all states first."""
    method = getattr(defaultdict, name)

    def gathering(states: ShardedStates, *args: Any, **kwargs: Any) -> Any:
        states._on_access()
        return method(states, *args, **kwargs)

    gathering.__name__ = name
    return gathering


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__",
    "__repr__", "get", "keys", "values", "items", "pop", "popitem", "clear", "setdefault", "update",
):  # fmt: skip
    setattr(ShardedStates, _name, _gathering(_name))


def gather_objects(
    obj: Any,
    group: ProcessGroup | None = None,
    dst: int | None = None,
    describes: bool = False,
) -> list[Any]:
    """Send ``obj`` to rank ``dst`` of ``group``, or to all its ranks; collective.

    Dense tensors are sent one by one and arrive on the device that they were on, so no rank needs
    memory for more than it keeps.  The rest is pickled.

    Args:
        obj: any object that can be pickled.
        group: the ranks that take part; None for all.
        dst: rank in the group; None for every rank.
        describes: whether large tensors of other ranks are on ``meta``, and are not sent.

    Returns:
        The objects of all ranks, by rank; this rank's is ``obj`` itself.  Empty on ranks other
        than ``dst``.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    file = io.BytesIO()
    packer = _Packer(file, MIN_BYTES if describes else 0)
    packer.dump(obj)
    packed: list[Any] = [None] * size
    dist.all_gather_object(packed, (file.getvalue(), packer.shapes), group)
    objects: list[Any] = []
    for owner, (data, shapes) in enumerate(packed):
        if owner == rank:
            if not describes:
                _send(packer.tensors, rank, group, dst)
            objects.append(obj)
        elif dst is None or rank == dst:
            tensors = [
                torch.empty(shape[0], dtype=shape[1], device="meta")
                if describes
                else _receive(shape, owner, group, dst)
                for shape in shapes
            ]
            objects.append(_Unpacker(io.BytesIO(data), tensors).load())
    return objects if dst is None or rank == dst else []


def _send(tensors: list[Tensor], rank: int, group: ProcessGroup | None, dst: int | None) -> None:
    for tensor in tensors:
        if dst is None:
            dist.broadcast(tensor.contiguous(), group=group, group_src=rank)
        elif rank != dst:
            isend(tensor.contiguous(), dst, group).work.wait()


def _receive(
    shape: tuple[Any, ...], owner: int, group: ProcessGroup | None, dst: int | None
) -> Tensor:
    size, dtype, device = shape
    tensor = torch.empty(size, dtype=dtype, device=device)
    if dst is None:
        dist.broadcast(tensor, group=group, group_src=owner)
    else:
        recv(tensor, owner, group)
    return tensor


class _Packer(pickle.Pickler):
    """Pickles everything but dense tensors, which it collects."""

    def __init__(self, file: io.BytesIO, min_bytes: int = 0) -> None:
        super().__init__(file)
        self._min_bytes = min_bytes
        self.tensors: list[Tensor] = []
        self.shapes: list[tuple[Any, ...]] = []

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return None
        if obj.numel() * obj.element_size() < self._min_bytes:
            return None
        self.tensors.append(obj.detach())
        self.shapes.append((tuple(obj.shape), obj.dtype, str(obj.device)))
        return len(self.tensors) - 1


class _Unpacker(pickle.Unpickler):
    """Unpickles the output of a ``_Packer``, given the tensors."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        return self.tensors[pid]
