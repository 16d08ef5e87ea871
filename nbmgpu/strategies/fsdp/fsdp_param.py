"""FSDP2's parameters, with the cell's own objects in place of DTensors."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# FSDP2 has no public way to choose what modules show for a sharded parameter.
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from nbmgpu.strategies.sequence.region import Region
from nbmgpu.strategies.sharding.collectives import gather_parts
from nbmgpu.strategies.sharding.param_state import ParamState
from nbmgpu.strategies.sharding.tensor_shard import NestedLayout, ShardLayout

if TYPE_CHECKING:
    from .fsdp_param_group import CellFSDPParamGroup


class FSDPParamState(ParamState):
    """The state of one sharded parameter.

    Attributes:
        fsdp_param, group: FSDP2's objects for it.
        split: how the parameter is split over ranks with the same samples; FSDP2 shards this rank's
            part.  None if FSDP2 shards the whole.
        rows: how FSDP2 shards the part, or the whole.
        gathered: full tensors that represent the parameter in autograd graphs.
        unreduced_grad: the full gradient of this rank that FSDP2 has not reduced.
        is_in_graph: whether a graph from before it was sharded leads to the parameter itself.
    """

    def __init__(
        self,
        parameter: Any,
        fsdp_param: CellFSDPParam,
        group: CellFSDPParamGroup,
        split: ShardLayout | None = None,
    ) -> None:
        """Make ``parameter`` a view of the rows that ``fsdp_param`` has copied from it."""
        self.split = split
        shape = parameter.shape if split is None else split.part_of(parameter.detach()).shape
        self.rows = ShardLayout(shape, group=group.shard_group)
        layout = self.rows if split is None else NestedLayout(split, self.rows)
        super().__init__(parameter, _local_rows(fsdp_param.sharded_param), layout)
        self.fsdp_param = fsdp_param
        self.group = group
        self.shard.on_change = group.reshard_stale
        self.gathered: list[weakref.ref[Tensor]] = []
        self.unreduced_grad: Tensor | None = None
        self.is_in_graph = parameter._use_count() > 1  # the second one is its AccumulateGrad node
        self.replace_class()

    def sharded_param(self) -> Any:
        """Return FSDP2's sharded parameter, a DTensor."""
        return self.fsdp_param.sharded_param

    def unsharded_param(self) -> Tensor | None:
        """Return FSDP2's unsharded parameter, which forward passes use, if there is one."""
        return getattr(self.fsdp_param, "_unsharded_param", None)

    def part(self) -> Tensor | None:
        """Return what FSDP2 has unsharded for the forward pass that runs now; None outside."""
        return self.unsharded_param() if self.group.is_unsharded else None

    def local_grad(self) -> Tensor | None:
        """Return this rank's rows of the gradient."""
        grad: Any = self.fsdp_param.sharded_param.grad
        # ``to_local`` would return another object each time, and take longer.
        return None if grad is None else grad._local_tensor

    def set_local_grad(self, grad: Tensor | None) -> None:
        """Replace this rank's rows of the gradient."""
        if grad is None:
            self.fsdp_param.clear_sharded_grad()
        else:
            self.sharded_param().grad = self.fsdp_param.to_sharded_dtensor(grad)

    def set_requires_grad(self, requires_grad: bool) -> None:
        """Set whether FSDP2's parameter requires a gradient."""
        self.sharded_param().requires_grad_(requires_grad)
        self.group.has_stale_dtypes = True

    def gather_for_graph(self) -> Tensor:
        """Gather the parameter outside of FSDP2's forward pass."""
        base: Tensor = GatherFull.apply(self.parameter, self)  # type: ignore[no-untyped-call]
        self.gathered = [ref for ref in self.gathered if ref() is not None]
        self.gathered.append(weakref.ref(base))
        return base if Region.current is None else Region.current.replicate(base)[0]

    def graph_tensors(self) -> list[Tensor]:
        """Return FSDP2's unsharded parameter, and those gathered outside of its forward pass."""
        unsharded = self.unsharded_param()
        gathered = [t for ref in self.gathered if (t := ref()) is not None]
        return ([] if unsharded is None else [unsharded]) + gathered

    def full_graph_grad(self, grad: Tensor) -> Tensor:
        """Gather the full gradient of a part's one."""
        if self.split is None or grad.shape == self.shape:
            return grad
        return gather_parts(grad, self.split)

    def restore_registration(self) -> None:
        """Register the cell's parameter on its modules, and free FSDP2's unsharded one."""
        self.group.reshard_stale()
        for module, name in self.fsdp_param.places():
            module._parameters[name] = self.parameter
        self.group.shows_unsharded = False

    def add_unreduced(self, grad: Tensor) -> None:
        """Accumulate a full gradient that FSDP2 does not reduce."""
        before = self.unreduced_grad
        self.unreduced_grad = grad.clone() if before is None else before + grad
        self.group.has_unreduced = True

    def _accumulate(self, rows: Tensor) -> None:
        """Add this rank's rows to the gradient."""
        if self.sharded_param().grad is None:
            self.sharded_param().grad = self.fsdp_param.to_sharded_dtensor(rows)
        else:
            self.sharded_param().grad.to_local().add_(rows)

    def reduce_unreduced(self) -> None:
        """Average and shard the gradients that FSDP2 has not reduced; collective."""
        grad, self.unreduced_grad = self.unreduced_grad, None
        group = self.group.shard_group
        if grad is None:
            grad = torch.zeros(self.rows.shape, dtype=self.dtype, device=self.device)
        elif self.split is not None:
            grad = self.split.part_of(grad)
        rows = self.rows.reduce_scatter(grad)
        count = dist.get_world_size(group)
        if self.group.replica_group is not None:
            dist.all_reduce(rows, group=self.group.replica_group)
            count *= self.group.replica_group.size()
        self._accumulate(rows.div_(count).to(self.shard.local.device))


class GatherFull(torch.autograd.Function):
    """Gathers a parameter outside of FSDP2's forward pass; its gradient is reduced afterwards."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, param_state: FSDPParamState) -> Tensor:
        """Gather the parameter; ``leaf`` makes the result require a gradient."""
        ctx.param_state = param_state
        return param_state.shard.full_tensor()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        """Keep the gradient until the strategy reduces it at the end of the backward pass."""
        ctx.param_state.add_unreduced(grad)
        return None, None


def _local_rows(tensor: Any) -> Tensor:
    """Return this rank's rows of a DTensor, sharing its memory."""
    rows: Tensor = tensor.to_local().detach()
    return rows


class CellFSDPParam(FSDPParam):
    """An ``FSDPParam`` that registers the cell's parameter on modules instead of a DTensor."""

    param_state: FSDPParamState | None = None
    _sharded_grad: Any = None

    def to_sharded_dtensor(self, tensor: Tensor) -> Any:
        """Return ``tensor``, this rank's rows of the gradient, as a DTensor.

        It is the same object each time, as only the sharded parameter and this object refer to it:
        a new one takes 5 us.
        """
        if self._sharded_grad is None:
            self._sharded_grad = super().to_sharded_dtensor(tensor)
        self._sharded_grad._local_tensor = tensor
        return self._sharded_grad

    def clear_sharded_grad(self) -> None:
        """Remove the gradient, and free its memory."""
        self.sharded_param.grad = None
        if self._sharded_grad is not None:
            self._sharded_grad._local_tensor = None

    def _setattr_on_modules(self, param: nn.Parameter) -> None:
        if self.param_state is None:
            super()._setattr_on_modules(param)  # else the group registers all of its parameters

    def reset_sharded_param(self) -> None:
        """Do nothing: the cell cannot replace the sharded parameter."""

    def places(self) -> list[tuple[nn.Module, str]]:
        """Return the modules that have this parameter, and its name in each."""
        info = self._module_info
        shared = zip(info.shared_modules, info.shared_param_names, strict=True)
        return [(info.module, info.param_name), *shared]
