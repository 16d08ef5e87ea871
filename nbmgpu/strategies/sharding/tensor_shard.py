"""Tensors of which each rank of a process group holds a part, or one rank the whole."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.collectives import all_gather, reduce_scatter

from .chunks import chunk_size


class TensorLayout(ABC):
    """Which rank of a process group holds which part of a tensor.

    Attributes:
        shape: shape of the full tensor.
        dims: dimensions that are split.
    """

    shape: torch.Size

    @property
    @abstractmethod
    def dims(self) -> tuple[int, ...]:
        """Dimensions that are split."""

    @abstractmethod
    def part_of(self, full: Tensor) -> Tensor:
        """Return this rank's part of ``full``, a view."""

    @abstractmethod
    def gather(self, part: Tensor, device: torch.device) -> Tensor:
        """Return the full tensor on ``device``, which is no view; collective over the group.

        Args:
            part: this rank's part, on any device.
            device: where the full tensor is needed.
        """


@dataclass(frozen=True)
class OwnerLayout(TensorLayout):
    """One rank holds the whole tensor, and the others nothing.

    Attributes:
        shape: shape of the full tensor.
        owner: the rank in ``group`` that holds it.
        group: the ranks.
    """

    shape: torch.Size
    owner: int
    group: ProcessGroup

    @property
    def dims(self) -> tuple[int, ...]:
        """The first one: all rows, or none."""
        return (0,)

    def part_of(self, full: Tensor) -> Tensor:
        """Return ``full`` on its owner, and elsewhere a tensor of shape (0,)."""
        return full if self.group.rank() == self.owner else full.reshape(-1)[:0]

    def gather(self, part: Tensor, device: torch.device) -> Tensor:
        """Broadcast the tensor from its owner."""
        owned = self.group.rank() == self.owner
        full = part.to(device, copy=True) if owned else part.new_empty(self.shape, device=device)
        full = full.contiguous()
        dist.broadcast(full, group=self.group, group_src=self.owner)
        return full


@dataclass(frozen=True)
class ShardLayout(TensorLayout):
    """Each rank holds a part of the tensor along a dimension, like DTensor's ``Shard(dim)``.

    Attributes:
        shape: shape of the full tensor.
        dim: dimension that is split, as by ``torch.chunk``: the last ranks may hold less.
        group: the ranks, in the order of their parts; None for all ranks.
    """

    shape: torch.Size
    dim: int = 0
    group: ProcessGroup | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimension that is split."""
        return (self.dim,)

    @property
    def chunk_size(self) -> int:
        """Size of the first ranks' part along ``dim``."""
        return chunk_size(self.shape[self.dim], dist.get_world_size(self.group))

    @property
    def start(self) -> int:
        """Index of this rank's first element along ``dim``."""
        return min(dist.get_rank(self.group) * self.chunk_size, self.shape[self.dim])

    @property
    def part_size(self) -> int:
        """Size of this rank's part along ``dim``."""
        return min(self.chunk_size, self.shape[self.dim] - self.start)

    def part_of(self, full: Tensor) -> Tensor:
        """Return this rank's part of ``full``, a view."""
        return full.narrow(self.dim, self.start, self.part_size)

    def gather(self, part: Tensor, device: torch.device) -> Tensor:
        """Gather the parts of all ranks."""
        if not self.shape.numel():
            return part.new_empty(self.shape, device=device)
        world_size, size = dist.get_world_size(self.group), self.shape[self.dim]
        own = self._padded(part.to(device), self.chunk_size).contiguous()
        gathered = own.new_empty((world_size * own.shape[0], *own.shape[1:]))
        all_gather(gathered, own, self.group)
        if self.dim:  # rows are copied as they are, much faster than by a transposition
            gathered = torch.cat(gathered.chunk(world_size), self.dim)
        if gathered.shape[self.dim] != size:
            gathered = gathered.narrow(self.dim, 0, size).clone()
        # Random numbers are drawn in the order of memory.
        return gathered.contiguous()

    def reduce_scatter(self, full: Tensor) -> Tensor:
        """Return this rank's part of the sum of all ranks' ``full`` tensors."""
        if not self.shape.numel():
            return self.part_of(full)
        world_size = dist.get_world_size(self.group)
        padded = self._padded(full, self.chunk_size * world_size)  # all parts have one size
        parts = padded.chunk(world_size, self.dim)
        rows = torch.cat(parts).contiguous() if self.dim else padded.contiguous()
        own = rows.new_empty(parts[0].shape)
        reduce_scatter(own, rows, self.group)
        return own.narrow(self.dim, 0, self.part_size)

    def _padded(self, tensor: Tensor, size: int) -> Tensor:
        """Return ``tensor`` with zeros after it, so that it has ``size`` along ``dim``."""
        shape = list(tensor.shape)
        shape[self.dim] = size - shape[self.dim]
        return torch.cat([tensor, tensor.new_zeros(shape)], self.dim) if shape[self.dim] else tensor


@dataclass(frozen=True)
class NestedLayout(TensorLayout):
    """Ranks of one group hold parts of the tensor, each of which is split over another group.

    Attributes:
        outer: how the tensor is split.
        inner: how this rank's part of it is split.
    """

    outer: TensorLayout
    inner: TensorLayout

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Shape of the full tensor."""
        return self.outer.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions that are split."""
        return tuple(sorted({*self.outer.dims, *self.inner.dims}))

    def part_of(self, full: Tensor) -> Tensor:
        """Return this rank's part of ``full``, a view."""
        return self.inner.part_of(self.outer.part_of(full))

    def gather(self, part: Tensor, device: torch.device) -> Tensor:
        """Gather over the inner group, and then over the outer one."""
        return self.outer.gather(self.inner.gather(part, device), device)


class TensorShard:
    """This rank's part of a tensor.

    Attributes:
        local: the part, possibly empty.
        layout: how the tensor is split.
        device: device of the full tensor; ``local`` may be in host memory.
        unsharded: the full tensor after the cell; from then on nothing is collective.
        original: the cell's tensor that the part was copied from, which is filled after the cell.
        on_change: called when the part has changed.
        before_gather: called before the full tensor is gathered, and may set ``unsharded``.
        can_gather: class attribute; False after a failure, when other ranks may have exited.
        forbidden: class attribute; returns the error of gathering a shard while other ranks run
            other code, or None for a shard whose ranks all run it.
    """

    can_gather: ClassVar[bool] = True
    forbidden: ClassVar[Callable[[TensorShard], Exception | None] | None] = None

    def __init__(self, local: Tensor, layout: TensorLayout, device: torch.device) -> None:
        """Hold ``local``, without copying it."""
        self.local = local
        self.layout = layout
        self.device = device
        self.unsharded: Tensor | None = None
        self.original: Tensor | None = None
        self.on_change: Callable[[], None] = nothing
        self.before_gather: Callable[[], None] = nothing
        self._snapshot: weakref.ref[Tensor] | None = None

    def change(self, local: Tensor, layout: TensorLayout, device: torch.device) -> None:
        """Hold another part from now on; views that the cell has follow."""
        self.local, self.layout, self.device = local, layout, device
        self.before_gather = nothing

    @property
    def shape(self) -> torch.Size:
        """Shape of the full tensor."""
        return self.layout.shape

    def full_tensor(self) -> Tensor:
        """Return the full tensor; collective unless it is unsharded.

        After a failure it cannot be gathered, and is filled with NaN.
        """
        self.before_gather()
        if self.unsharded is not None:
            return self.unsharded
        error = TensorShard.forbidden(self) if TensorShard.forbidden is not None else None
        if error is not None:
            raise error
        if not TensorShard.can_gather:
            return torch.full(self.shape, float("nan"), dtype=self.local.dtype, device=self.device)
        with torch.no_grad():
            return self.layout.gather(self.local.detach(), self.device)

    def copy_from(self, full: Tensor) -> None:
        """Copy this rank's part from ``full``."""
        with torch.no_grad():
            if self.unsharded is not None:
                self.unsharded.copy_(full)
            else:
                self.local.detach().copy_(self.layout.part_of(full))
                self.on_change()

    def move_to(self, layout: TensorLayout) -> None:
        """Split the tensor by another layout from now on; collective."""
        full = self.full_tensor()
        part = layout.part_of(full)
        self.local = (part if part is full else part.clone()).to(self.local.device)
        self.layout = layout

    def snapshot(self) -> Tensor:
        """Return a full copy for code that reads memory directly; shared while it is referenced."""
        kept = self._snapshot() if self._snapshot else None
        if kept is None:
            kept = self.full_tensor()
            self._snapshot = weakref.ref(kept)
        return kept


def nothing() -> None:
    """Do nothing."""
