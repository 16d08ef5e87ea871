"""The memory of full parameters while their model is sharded: freed, and allocated again.

Other tensors of the cell may share it, such as those of an earlier ``state_dict()``.  They become
views of the sharded parameter, so that they follow its values as on one device.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .full_tensor_view import FullTensorView
from .tensor_shard import TensorShard

if TYPE_CHECKING:
    from .param_state import ParamState


class AliasView(FullTensorView, Tensor):  # type: ignore[misc]
    """A tensor that shares memory with a parameter, while that is sharded."""


class FreedStorage:
    """The storages of sharded parameters.

    Attributes:
        aliases: tensors that share memory with a parameter, and are views of it meanwhile.
        freed: freed storages with their sizes in bytes, by ``id``.
    """

    def __init__(self) -> None:
        """Start without storages."""
        self.aliases: list[Any] = []
        self.freed: dict[int, tuple[Any, int]] = {}

    def free(self, param_states: Sequence[ParamState]) -> None:
        """Free the parameters' storages that no other tensor uses, and make aliases views.

        Memory that is mapped from the notebook's bundle does not belong to this process and stays.
        """
        kept = [s for s in param_states if not s.was_moved]  # the cell has them on a GPU
        data = [(s, s.original_data) for s in kept if s.original_data is not None]
        originals = {id(d) for _, d in data}
        by_layout = {_layout(d): s for s, d in data}
        storages = {_address(d): d.untyped_storage() for _, d in data}
        shared: set[int] = set()
        for tensor in _tensors_over(storages.keys()):
            if id(tensor) in originals:
                continue
            param_state = by_layout.get(_layout(tensor))
            if param_state is not None and type(tensor) is Tensor and tensor.is_leaf:
                self._make_view(tensor, param_state.shard)  # to ask for its address would gather it
            else:
                shared.add(_address(tensor))
        used: dict[int, int] = {}
        for _, original in data:
            address = _address(original)
            used[address] = used.get(address, 0) + original.nbytes
        for address, storage in storages.items():
            is_exclusive = address not in shared and used[address] == storage.nbytes()
            if is_exclusive and storage.resizable():
                self.freed[id(storage)] = storage, storage.nbytes()
                storage.resize_(0)

    def _make_view(self, tensor: Any, shard: TensorShard) -> None:
        tensor.__class__ = AliasView
        tensor._shard = shard
        self.aliases.append(tensor)

    def restore(self, lost: bool = False) -> None:
        """Allocate the freed storages again, and make aliases plain tensors.

        Args:
            lost: whether the values are lost; the storages are then filled with NaN.
        """
        for storage, nbytes in self.freed.values():
            storage.resize_(nbytes)
            if lost:
                storage.fill_(0xFF)  # all bits set are NaN in every format
        self.freed.clear()
        for tensor in self.aliases:
            del tensor._shard
            tensor.__class__ = Tensor
        self.aliases.clear()


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _layout(tensor: Any) -> tuple[int, torch.Size, torch.dtype, Any]:
    return tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.stride()


def _tensors_over(addresses: Any) -> list[Any]:
    """Return all strided tensors of the process whose storage is at one of ``addresses``."""
    found = []
    for obj in gc.get_objects():
        if type(obj) not in (Tensor, torch.nn.Parameter) or obj.layout is not torch.strided:
            continue
        try:
            if _address(obj) in addresses:
                found.append(obj)
        except RuntimeError:  # a tensor without storage
            continue
    return found
