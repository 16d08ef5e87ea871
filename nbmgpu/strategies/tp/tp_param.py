"""A parameter of the cell of which each rank of a tensor-parallel group holds a part."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nbmgpu.strategies.sequence.region import Region
from nbmgpu.strategies.sharding.collectives import gather_parts, replicate_input
from nbmgpu.strategies.sharding.param_state import ParamState, device_of
from nbmgpu.strategies.sharding.tensor_shard import TensorLayout


class TPParamState(ParamState):
    """The state of one split parameter.

    Attributes:
        local: this rank's part, the parameter that forward passes use.
    """

    def __init__(self, parameter: Any, layout: TensorLayout) -> None:
        """Copy this rank's part from ``parameter``, and make that a view."""
        part = layout.part_of(parameter.detach()).to(device_of(parameter), copy=True).contiguous()
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
        """Gather the full parameter, for operations outside of its module.

        In a region, each rank uses it for its own slice of the sequence: its gradients add up.
        """
        full = gather_parts(self.local, self.shard.layout)
        return full if Region.current is None else replicate_input(full, Region.current.group)

    def graph_tensors(self) -> list[Tensor]:
        """Return this rank's part."""
        return [self.local]

    def full_graph_grad(self, grad: Tensor) -> Tensor:
        """Gather the full gradient of the part's one."""
        return gather_parts(grad, self.shard.layout)

    def restore_registration(self) -> None:
        """Do nothing: modules keep the cell's parameter."""
