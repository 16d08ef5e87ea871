"""Tensors that are sharded over ranks by rows, like FSDP2's ``Shard(0)``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map

# Torch before 2.12 has them under other names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class RowShard:
    """A tensor whose rows are split over the ranks, as by ``torch.chunk``.

    Attributes:
        local: this rank's rows, possibly none; shape (rows, ...).
        shape: shape of the full tensor.
        device: device of the full tensor; ``local`` may be in host memory.
        unsharded: the full tensor after the cell; from then on nothing is collective.
        original: the cell's tensor that the rows were copied from, which is filled after the cell.
        on_change: called when the rows have changed.
        can_gather: class attribute; False after a failure, when other ranks may have exited.
    """

    can_gather: ClassVar[bool] = True

    def __init__(self, local: Tensor, shape: torch.Size, device: torch.device) -> None:
        """Hold ``local``, without copying it."""
        self.local = local
        self.shape = shape
        self.device = device
        self.unsharded: Tensor | None = None
        self.original: Tensor | None = None
        self.on_change: Callable[[], None] = _nothing
        self._snapshot: weakref.ref[Tensor] | None = None

    @property
    def rows_per_rank(self) -> int:
        """Number of rows on the first ranks; the last ranks may hold fewer."""
        return -(-self.shape[0] // dist.get_world_size())

    def local_rows(self, full: Tensor) -> Tensor:
        """Return a view of this rank's rows of ``full``."""
        start = min(dist.get_rank() * self.rows_per_rank, self.shape[0])
        return full[start : start + self.rows_per_rank]

    def full_tensor(self) -> Tensor:
        """Return the full tensor; collective unless it is unsharded.

        After a failure it cannot be gathered, and is filled with NaN.
        """
        if self.unsharded is not None:
            return self.unsharded
        if not RowShard.can_gather:
            return torch.full(self.shape, float("nan"), dtype=self.local.dtype, device=self.device)
        with torch.no_grad():
            return all_gather_rows(self.local.detach(), self.shape, self.device)

    def copy_from(self, full: Tensor) -> None:
        """Copy this rank's rows from ``full``."""
        with torch.no_grad():
            if self.unsharded is not None:
                self.unsharded.copy_(full)
            else:
                self.local.detach().copy_(self.local_rows(full))
                self.on_change()

    def snapshot(self) -> Tensor:
        """Return a full copy for code that reads memory directly; shared while it is referenced."""
        kept = self._snapshot() if self._snapshot else None
        if kept is None:
            kept = self.full_tensor()
            self._snapshot = weakref.ref(kept)
        return kept


def _nothing() -> None:
    pass


def all_gather_rows(local: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    """Gather the rows of all ranks to a tensor of ``shape`` on ``device``; collective."""
    world_size = dist.get_world_size()
    rows_per_rank = -(-shape[0] // world_size)
    part = local.to(device)
    if part.shape[0] < rows_per_rank:
        padding = part.new_zeros((rows_per_rank - part.shape[0], *shape[1:]))
        part = torch.cat([part, padding])
    full = part.new_empty((rows_per_rank * world_size, *shape[1:]))
    all_gather_single(full, part.contiguous())
    return full if full.shape == shape else full[: shape[0]].clone()


@dataclass(frozen=True)
class ViewOp:
    """The operation that created a view, to apply it again.

    Attributes:
        function, args, kwargs: the call.
        base: the argument that is replaced by the tensor to view.
        item: index of the view in the result, if that is a sequence.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    base: Any
    item: int | None = None

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the view of ``tensor``."""

        def replace(value: Any) -> Any:
            return tensor if value is self.base else value

        args, kwargs = tree_map(replace, (self.args, self.kwargs))
        result: Any = self.function(*args, **kwargs)
        return result if self.item is None else result[self.item]  # type: ignore[no-any-return]


class ParamState:
    """The state under FSDP2 of the parameter that a ``ShardedParameter`` represents.

    Attributes:
        gathered: full tensors that represent the parameter in autograd graphs.
        unreduced_grad: the full gradient of this rank that FSDP2 has not reduced.
    """

    def __init__(self) -> None:
        """Start without gathered tensors and gradients."""
        self.gathered: list[weakref.ref[Tensor]] = []
        self.unreduced_grad: Tensor | None = None

    def add_unreduced(self, grad: Tensor) -> None:
        """Accumulate a full gradient that FSDP2 does not reduce."""
        before = self.unreduced_grad
        self.unreduced_grad = grad.clone() if before is None else before + grad

    def sharded_param(self) -> Tensor:
        """Return FSDP2's sharded parameter, a DTensor."""
        raise NotImplementedError

    def unsharded_param(self) -> Tensor | None:
        """Return FSDP2's unsharded parameter, which forward passes use, if there is one."""
        raise NotImplementedError

    def grad_view(self) -> Tensor | None:
        """Return the gradient as the cell sees it."""
        raise NotImplementedError

    def set_grad(self, grad: Tensor | None) -> None:
        """Set the gradient from a full tensor, or a full tensor view."""
        raise NotImplementedError


class GatherFull(torch.autograd.Function):
    """Gathers a parameter outside of FSDP2's forward pass; its gradient is reduced afterwards."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, param_state: ParamState, shard: RowShard) -> Tensor:
        """Gather ``shard``; ``leaf`` makes the result require a gradient."""
        ctx.param_state = param_state
        return shard.full_tensor()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        """Keep the gradient until the strategy reduces it at the end of the backward pass."""
        ctx.param_state.add_unreduced(grad)
        return None, None, None
