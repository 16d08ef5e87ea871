"""A parameter of a block: the ranks of one stage hold it, split and sharded among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version
from torch.distributed import ProcessGroup

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.sharding.collectives import gather_parts
from nbmgpu.strategies.sharding.tensor_shard import (
    NestedLayout,
    OwnerLayout,
    ShardLayout,
    TensorLayout,
)
from nbmgpu.strategies.tp.tp_param import TPParamState


@dataclass(frozen=True)
class StageGroups:
    """The process groups of a pipeline, along each dimension of the mesh.

    Attributes:
        pp: the ranks of all stages; each dimension below has the ranks of one.
        fsdp: the ranks that shard parameters, and have different samples; None without any.
        tp: the ranks that split layers, and have the same samples; None without any.
        dp: the ranks that hold the same parameters, and have different samples; None without any.
    """

    pp: ProcessGroup
    dp: ProcessGroup | None = None
    fsdp: ProcessGroup | None = None
    tp: ProcessGroup | None = None


class StageParamState(TPParamState):
    """The state of one parameter of a block.

    The ranks along ``tp`` split it, and those along ``fsdp`` shard each part by rows.  A stage
    gathers the rows when it first runs, and keeps them to the end of the backward pass, as
    torchtitan does under pipeline parallelism: there is an all-gather per step instead of one per
    microbatch.

    Attributes:
        local: this rank's rows, the leaf of the cell's graph; no elements on other stages' ranks.
        split: how the parameter is split over ``tp``; None if it is not.
        groups: the ranks that hold its parts.
        rows: how the part is sharded over ``fsdp``; None if it is not.
        unsharded: what the stage computes with; without ``rows``, it shares the memory of
            ``local``, and has no gradient nor hooks of the cell.
        is_owned: whether this rank is of its stage.
    """

    def __init__(
        self, parameter: Any, owner: int, groups: StageGroups, split: ShardLayout | None = None
    ) -> None:
        """Copy this rank's rows from ``parameter``, and make that a view.

        Args:
            parameter: the cell's parameter.
            owner: index of its stage's rank along ``pp``.
            groups: the ranks.
            split: how it is split over ``tp``.
        """
        self.split = split
        self.groups = groups
        self.is_owned = groups.pp.rank() == owner
        shape = parameter.shape if split is None else split.part_of(parameter.detach()).shape
        owned = OwnerLayout(shape, owner, groups.pp)
        self.stage_layout: TensorLayout = _nested(split, owned)
        self.rows: ShardLayout | None = None
        if groups.fsdp is not None and len(shape):
            self.rows = ShardLayout(shape if self.is_owned else torch.Size([0]), 0, groups.fsdp)
        inner = owned if self.rows is None else NestedLayout(owned, self.rows)
        super().__init__(parameter, _nested(split, inner))
        memory = self.local.detach() if self.rows is None else self.local.new_empty(0)
        self.unsharded = nn.Parameter(memory, parameter.requires_grad)
        self.shard.on_change = self._part_has_changed
        self._outside = self.shard.local, self.shard.layout

    def part(self) -> Tensor:
        """Return this rank's part along ``tp``, while its stage runs."""
        return self.unsharded

    def begin_stage(self) -> None:
        """Gather the rows, and let the cell's parameter be one that is split over ``tp`` only."""
        self.unshard()
        if self.split is not None:
            self.shard.local, self.shard.layout = self.unsharded.detach(), self.split

    def end_stage(self) -> None:
        """Let the cell's parameter be a view of this rank's rows again."""
        self.shard.local, self.shard.layout = self._outside

    def unshard(self) -> None:
        """Gather the rows, if they are not; collective over ``fsdp``."""
        if self.is_resharded:
            assert self.rows is not None
            self.unsharded.data = self.rows.gather(self.local.detach(), self.local.device)

    @property
    def is_resharded(self) -> bool:
        """Whether this rank has its own rows only."""
        return self.rows is not None and not self.unsharded.numel()

    def reshard(self) -> None:
        """Free the rows of other ranks."""
        if self.rows is not None:
            self.unsharded.data = self.local.new_empty(0)

    def _part_has_changed(self) -> None:
        """Gather anew in the next pass; a graph from before is stale, as on one device."""
        if self.rows is not None:
            self.reshard()
            increment_version(self.unsharded)

    def reduce_grad(self, grad: Tensor) -> Tensor:
        """Return the gradient of ``local`` for that of ``unsharded``; may be collective."""
        return grad if self.rows is None else self.average(grad)

    def average(self, full: Tensor) -> Tensor:
        """Return this rank's rows of the average over ``fsdp`` and ``dp``; collective."""
        assert self.rows is not None
        assert self.rows.group is not None
        rows = self.rows.reduce_scatter(full)
        count, replicas = self.rows.group.size(), self.groups.dp
        if replicas is not None and self.is_owned:
            rows = rows.contiguous()
            dist.all_reduce(rows, group=replicas)
            count *= replicas.size()
        return rows.div_(count)

    def set_requires_grad(self, requires_grad: bool) -> None:
        """Set whether the stage records gradients."""
        super().set_requires_grad(requires_grad)
        self.unsharded.requires_grad_(requires_grad)

    def move_to(self, owner: int) -> None:
        """Move parameter and gradient to another rank along ``pp``, the only dimension; collective.

        Graphs of the part from before must have had their backward pass.

        Args:
            owner: index of the rank.
        """
        view, before = self.grad_view(), self.local
        layout = OwnerLayout(self.shape, owner, self.groups.pp)
        self.shard.move_to(layout)
        self.local = nn.Parameter(self.shard.local, before.requires_grad)
        self.unsharded = nn.Parameter(self.shard.local, before.requires_grad)
        if view is not None:
            view._shard.move_to(layout)
            self.local.grad = view._shard.local
            self._grad = self.local.grad, view
        if before.requires_grad:
            before.register_hook(_refuse_gradient)
        self.is_owned, self.stage_layout = self.groups.pp.rank() == owner, layout
        self._outside = self.shard.local, layout

    def gather_for_graph(self) -> Tensor:
        """Gather the full parameter, inside of its stage or for operations of the cell."""
        if self.shard.layout is self.split:
            return gather_parts(self.unsharded, self.split)
        local = self.local
        if self.rows is not None:
            local = GatherRows.apply(local, self)  # type: ignore[no-untyped-call]
        return gather_parts(local, self.stage_layout)


def _nested(split: ShardLayout | None, inner: TensorLayout) -> TensorLayout:
    return inner if split is None else NestedLayout(split, inner)


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


class GatherRows(torch.autograd.Function):
    """Gathers rows for an operation of the cell; ranks with other samples average the gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, state: StageParamState) -> Tensor:
        """Gather the rows of all ranks."""
        ctx.state = state
        assert state.rows is not None
        return state.rows.gather(local, local.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Average the gradient over the ranks, of which each keeps its rows."""
        return ctx.state.average(grad), None
