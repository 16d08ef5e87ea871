"""FSDP2's parameters, with the cell's own objects in place of DTensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# FSDP2 has no public way to choose what modules show for a sharded parameter.
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from .full_tensor_view import FullTensorView, ShardedParameter, full_view_of, resolve
from .row_shards import ParamState, RowShard, reduce_scatter_single

if TYPE_CHECKING:
    from .fsdp_param_group import CellFSDPParamGroup


class FSDPParamState(ParamState):
    """The state of one sharded parameter.

    Attributes:
        parameter: the cell's object, a ``ShardedParameter`` meanwhile.
        fsdp_param, group: FSDP2's objects for it.
        original_data: the parameter's data from before, to be restored.
        shard: this rank's rows.
        has_grad: whether FSDP2 got a gradient in this backward pass.
        had_no_grad: whether ``.grad`` was None before this backward pass.
    """

    def __init__(
        self, parameter: Any, fsdp_param: CellFSDPParam, group: CellFSDPParamGroup
    ) -> None:
        """Make ``parameter`` a view of the rows that ``fsdp_param`` has copied from it."""
        super().__init__()
        self.fsdp_param = fsdp_param
        self.group = group
        self.parameter = parameter
        self.original_data: Tensor | None = parameter.data
        self.dtype, self.device, self.shape = parameter.dtype, parameter.device, parameter.shape
        self.shard = RowShard(_local_rows(fsdp_param.sharded_param), self.shape, self.device)
        self.shard.on_change = group.reshard_stale
        self.has_grad = False
        self.had_no_grad = True
        self._grad: tuple[Any, Any] = (None, None)
        self._replace_class()

    def _replace_class(self) -> None:
        parameter = self.parameter
        placeholder = torch.full((1,), float("nan"), dtype=self.dtype, device=self.device)
        parameter.data = placeholder.expand(self.shape)
        grad, parameter.grad = parameter.grad, None
        parameter.__class__ = ShardedParameter
        parameter._shard, parameter._param_state = self.shard, self
        self.set_grad(grad)

    def sharded_param(self) -> Any:
        """Return FSDP2's sharded parameter, a DTensor."""
        return self.fsdp_param.sharded_param

    def unsharded_param(self) -> Tensor | None:
        """Return FSDP2's unsharded parameter, which forward passes use, if there is one."""
        return getattr(self.fsdp_param, "_unsharded_param", None)

    def grad_view(self) -> Tensor | None:
        """Return the gradient as a full tensor view."""
        grad = self.sharded_param().grad
        if grad is None:
            self._grad = (None, None)
        elif self._grad[0] is not grad:
            shard = RowShard(grad.to_local(), self.shape, self.device)
            self._grad = (grad, full_view_of(shard))
        return self._grad[1]  # type: ignore[no-any-return]

    def set_grad(self, grad: Any) -> None:
        """Set the gradient to this rank's rows of a full tensor, or of a full tensor view."""
        self._grad = (None, None)
        if grad is None:
            self.sharded_param().grad = None
            return
        if tuple(grad.shape) != tuple(self.shape):
            what = f"assigned grad has data of a different size than {tuple(self.shape)}"
            raise RuntimeError(what)
        grad = grad.detach()
        full = resolve(grad)[1] if isinstance(grad, FullTensorView) else grad
        rows = self.shard.local_rows(full).to(self.shard.local.device, self.dtype, copy=True)
        self.sharded_param().grad = self.fsdp_param.to_sharded_dtensor(rows.contiguous())

    def collect_unreduced(self) -> None:
        """Collect gradients that FSDP2 has not reduced.

        They arrived after its reduce-scatter, or at the cell's parameter itself, from a forward
        pass that ran before it was sharded.
        """
        with torch._C.DisableTorchFunctionSubclass():
            before_sharding, self.parameter.grad = self.parameter.grad, None
        unsharded: Any = self.unsharded_param()
        after_reduction = None if unsharded is None else unsharded.grad
        if unsharded is not None:
            unsharded.grad = None
        for grad in (before_sharding, after_reduction):
            if grad is not None:
                self.add_unreduced(grad.detach())

    def _accumulate(self, rows: Tensor) -> None:
        """Add this rank's rows to the gradient."""
        if self.sharded_param().grad is None:
            self.sharded_param().grad = self.fsdp_param.to_sharded_dtensor(rows)
        else:
            self.sharded_param().grad.to_local().add_(rows)

    def reduce_unreduced(self) -> None:
        """Average and shard the gradients that FSDP2 has not reduced; collective."""
        grad, self.unreduced_grad = self.unreduced_grad, None
        world_size, rows_per_rank = dist.get_world_size(), self.shard.rows_per_rank
        padded = torch.zeros(
            (rows_per_rank * world_size, *self.shape[1:]), dtype=self.dtype, device=self.device
        )
        if grad is not None:
            padded[: self.shape[0]] = grad
        rows = padded.new_empty((rows_per_rank, *self.shape[1:]))
        reduce_scatter_single(rows, padded)
        local = self.shard.local
        self._accumulate(rows.div_(world_size)[: local.shape[0]].to(local.device))


def _local_rows(tensor: Any) -> Tensor:
    """Return this rank's rows of a DTensor, sharing its memory."""
    rows: Tensor = tensor.to_local().detach()
    return rows


class CellFSDPParam(FSDPParam):
    """An ``FSDPParam`` that registers the cell's parameter on modules instead of a DTensor."""

    param_state: FSDPParamState | None = None

    def _setattr_on_modules(self, param: nn.Parameter) -> None:
        if param is self.sharded_param and self.param_state is not None:
            param = self.param_state.parameter
        super()._setattr_on_modules(param)

    def reset_sharded_param(self) -> None:
        """Do nothing: the cell cannot replace the sharded parameter."""

    def register(self, unsharded: bool) -> None:
        """Register the unsharded parameter on the modules, or the cell's."""
        self._setattr_on_modules(self._unsharded_param if unsharded else self.sharded_param)

    def is_registered(self) -> bool:
        """Whether the module has this parameter, and not a replacement of the cell."""
        info = self._module_info
        current = info.module._parameters.get(info.param_name)
        assert self.param_state is not None
        unsharded = getattr(self, "_unsharded_param", None)
        return current is self.param_state.parameter or current is unsharded
