"""A parameter of the cell that is sharded, with its part and its gradient on this rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from .full_tensor_view import FullTensorView, ShardedParameter, full_view_of, resolve
from .tensor_shard import TensorLayout, TensorShard

MOVED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Parameters that the cell has moved to a GPU, and whose values are still on the host: the shard
that the cell's views of each have, with the GPU as its device."""


def device_of(parameter: Any) -> torch.device:
    """Return the device on which the cell has ``parameter``, wherever its values are."""
    moved: TensorShard | None = MOVED.get(parameter)
    device: torch.device = parameter.device if moved is None else moved.device
    return device


class ParamState(ABC):
    """The state of one sharded parameter.

    Attributes:
        parameter: the cell's object, a ``ShardedParameter`` meanwhile.
        original_data: the parameter's data from before, to be restored.
        was_moved: whether that is on the host, and for the cell the parameter is on a GPU.
        shard: this rank's part.
    """

    def __init__(
        self, parameter: Any, local: Tensor, layout: TensorLayout,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        """Initialize; ``replace_class`` makes ``parameter`` a view.

        Args:
            parameter: the cell's parameter.
            local: this rank's part of it, which was copied from it.
            layout: how it is split.
            device: where the cell has it; None for ``device_of(parameter)``.
        """
        self.parameter = parameter
        self.device = device_of(parameter) if device is None else device
        self.was_moved = parameter in MOVED and parameter.device.type == "cpu"
        self.original_data: Tensor | None = parameter.data
        self.dtype, self.shape = parameter.dtype, parameter.shape
        self.shard = MOVED.pop(parameter, None) or TensorShard(local, layout, self.device)
        self.shard.change(local, layout, self.device)
        self._grad: tuple[Tensor | None, Any] = (None, None)

    def replace_class(self) -> None:
        """Make the parameter a view of its shard, without memory of its own."""
        parameter = self.parameter
        placeholder = torch.full((), float("nan"), dtype=self.dtype, device=self.device)
        parameter.data = placeholder.expand(self.shape)
        grad, parameter.grad = parameter.grad, None
        parameter.__class__ = ShardedParameter
        parameter._shard, parameter._param_state = self.shard, self
        self.set_grad(grad)

    @abstractmethod
    def local_grad(self) -> Tensor | None:
        """Return this rank's part of the gradient: the same object until it is replaced."""

    @abstractmethod
    def set_local_grad(self, grad: Tensor | None) -> None:
        """Replace this rank's part of the gradient."""

    @abstractmethod
    def set_requires_grad(self, requires_grad: bool) -> None:
        """Set whether forward passes record gradients for the parameter."""

    @abstractmethod
    def gather_for_graph(self) -> Tensor:
        """Return the full parameter as a part of the autograd graph; collective."""

    @abstractmethod
    def graph_tensors(self) -> list[Tensor]:
        """Return the tensors that represent the parameter in autograd graphs."""

    def full_graph_grad(self, grad: Tensor) -> Tensor:
        """Return the full gradient for that of a tensor in ``graph_tensors``."""
        return grad

    @abstractmethod
    def restore_registration(self) -> None:
        """Register the cell's parameter on its modules, and free what was unsharded."""

    def take_early_grad(self) -> Tensor | None:
        """Remove and return the full gradient of this rank that is on the cell's parameter itself.

        It comes from a forward pass that ran before the parameter was sharded.
        """
        with torch._C.DisableTorchFunctionSubclass():
            grad: Tensor | None = self.parameter.grad
            self.parameter.grad = None
        return grad

    def grad_view(self) -> Any:
        """Return the gradient as a full tensor view."""
        local = self.local_grad()
        if local is None:
            self._grad = (None, None)
        elif self._grad[0] is not local:
            shard = TensorShard(local, self.shard.layout, self.device)
            self._grad = (local, full_view_of(shard))
        return self._grad[1]

    def set_grad(self, grad: Any) -> None:
        """Set the gradient to this rank's part of a full tensor, or of a full tensor view."""
        self._grad = (None, None)
        if grad is None:
            self.set_local_grad(None)
            return
        if tuple(grad.shape) != tuple(self.shape):
            what = f"assigned grad has data of a different size than {tuple(self.shape)}"
            raise RuntimeError(what)
        grad = grad.detach()
        full = resolve(grad)[1] if isinstance(grad, FullTensorView) else grad
        part = self.shard.layout.part_of(full)
        self.set_local_grad(part.to(self.shard.local.device, self.dtype, copy=True).contiguous())


def make_plain(param_state: ParamState, data: Tensor) -> None:
    """Make the cell's parameter a plain ``nn.Parameter`` with ``data``."""
    parameter: Any = param_state.parameter
    requires_grad = parameter.requires_grad
    del parameter._shard, parameter._param_state
    parameter.__class__ = nn.Parameter
    parameter.data = data
    parameter.requires_grad_(requires_grad)
