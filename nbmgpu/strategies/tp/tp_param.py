"""A parameter of the cell of which each rank of a tensor-parallel group holds a part."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.sharding.param_state import ParamState
from nbmgpu.strategies.sharding.tensor_shard import TensorLayout

from .collectives import gather_parts


class TPParamState(ParamState):
    """The state of one split parameter.

    Attributes:
        local: this rank's part, the parameter that forward passes use.
    """

    def __init__(self, parameter: Any, layout: TensorLayout) -> None:
        """Copy this rank's part from ``parameter``, and make that a view."""
        part = layout.part_of(parameter.detach()).clone().contiguous()
        super().__init__(parameter, part, layout)
        self.local = nn.Parameter(part, parameter.requires_grad)
        self.replace_class()

    def part(self) -> Tensor:
        """Return this rank's part, which is always there."""
        return self.local

    def local_grad(self) -> Tensor | None:
        """Return this rank's part of the gradient."""
        return self.local.grad

    def set_local_grad(self, grad: Tensor | None) -> None:
        """Replace this rank's part of the gradient."""
        self.local.grad = grad

    def accumulate_grad(self, grad: Tensor) -> None:
        """Add this rank's part of a full gradient."""
        part = self.shard.layout.part_of(grad)
        self.local.grad = part.clone() if self.local.grad is None else self.local.grad + part

    def set_requires_grad(self, requires_grad: bool) -> None:
        """Set whether the part requires a gradient."""
        self.local.requires_grad_(requires_grad)

    def gather_for_graph(self) -> Tensor:
        """Gather the full parameter, for operations outside of its module."""
        return gather_parts(self.local, self.shard.layout)

    def move_to(self, layout: TensorLayout) -> None:
        """Split parameter and gradient by another layout; collective.

        Graphs of the part from before must have had their backward pass.
        """
        view, before = self.grad_view(), self.local
        self.shard.move_to(layout)
        self.local = nn.Parameter(self.shard.local, before.requires_grad)
        if view is not None:
            view._shard.move_to(layout)
            self.local.grad = view._shard.local
            self._grad = self.local.grad, view
        if before.requires_grad:
            before.register_hook(_refuse_gradient)

    def graph_tensors(self) -> list[Tensor]:
        """Return this rank's part."""
        return [self.local]

    def full_graph_grad(self, grad: Tensor) -> Tensor:
        """Gather the full gradient of the part's one."""
        return gather_parts(grad, self.shard.layout)

    def restore_registration(self) -> None:
        """Do nothing: modules keep the cell's parameter."""


def _refuse_gradient(grad: Tensor) -> None:
    """Refuse the gradient of a part that is not used any more, which would be lost.

    Raises:
        StrategyError: always.
    """
    raise StrategyError(
        format_message(
            "A graph from before the first step, when layers were moved between ranks to balance "
            "their time, has a backward pass now",
            "Backward passes come before the step",
            "%%mgpu --strategy pp --balance parameters",
        )
    )
