"""The memory of whole parameters while their model is sharded: given up, and had again.

Other tensors of the cell may share it, such as a ``state_dict()`` taken earlier; these
follow the parameter, as they do on one device.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .row_shards import Shard
from .sharded_tensors import Face

if TYPE_CHECKING:
    from .wrapper import Slot


class Follower(Face, Tensor):  # type: ignore[misc]
    """A tensor that shares memory with a parameter, while that is sharded."""


class Lent:
    """What the memory of sharded parameters has become."""

    def __init__(self) -> None:
        """Have nothing."""
        self.followers: list[Any] = []
        self.freed: dict[int, tuple[Any, int]] = {}

    def take(self, slots: list[Slot]) -> None:
        """Let tensors that share parameters' memory follow them, and free what nobody else has.

        Memory that is mapped from the notebook's bundle is not this process's own and stays.
        """
        homes = {id(s.home) for s in slots}
        by_place = {_place(s.home): s for s in slots if s.home is not None}
        storages = {_start(s.home): s.home.untyped_storage() for s in slots if s.home is not None}
        shared: set[int] = set()
        for tensor in _tensors_over(storages.keys()):
            if id(tensor) in homes:
                continue
            slot = by_place.get(_place(tensor))
            if slot is not None and type(tensor) is Tensor and tensor.is_leaf:
                self._follow(tensor, slot.shard)
            shared.add(_start(tensor))
        used: dict[int, int] = {}
        for slot in slots:
            if slot.home is not None:
                start = _start(slot.home)
                used[start] = used.get(start, 0) + slot.home.nbytes
        for start, storage in storages.items():
            alone = start not in shared and used[start] == storage.nbytes()
            if alone and storage.resizable():
                self.freed[id(storage)] = storage, storage.nbytes()
                storage.resize_(0)

    def _follow(self, tensor: Any, shard: Shard) -> None:
        tensor.__class__ = Follower
        tensor._shard = shard
        self.followers.append(tensor)

    def give_back(self, lost: bool = False) -> None:
        """Allocate what was freed, and let followers be plain; their memory is the parameter's.

        With ``lost``, nobody will fill what was freed: then it holds NaN.
        """
        for storage, nbytes in self.freed.values():
            storage.resize_(nbytes)
            if lost:
                storage.fill_(0xFF)  # all bits set are NaN in every format
        self.freed.clear()
        for tensor in self.followers:
            del tensor._shard
            tensor.__class__ = Tensor
        self.followers.clear()


def _start(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _place(tensor: Any) -> tuple[int, torch.Size, torch.dtype, Any]:
    return tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.stride()


def _tensors_over(starts: Any) -> list[Any]:
    """Return all strided tensors of the process whose memory begins at one of ``starts``."""
    found = []
    for obj in gc.get_objects():
        if type(obj) not in (Tensor, torch.nn.Parameter) or obj.layout is not torch.strided:
            continue
        try:
            if _start(obj) in starts:
                found.append(obj)
        except RuntimeError:  # a tensor without memory
            continue
    return found
