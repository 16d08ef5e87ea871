"""The body of a block, while each rank has a slice of the sequence, or of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.collectives import all_reduce
from nbmgpu.strategies.graph_leaves import reaches
from nbmgpu.strategies.sharding.chunks import chunk_sizes
from nbmgpu.strategies.sharding.collectives import gather_parts
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout

from .parameters import replicate_parameters

Exchange = Literal["heads", "keys"]
"""How ranks share attention: each has some heads, or its queries and the keys of all ranks."""


class NotSplittableError(Exception):
    """An operation in a block cannot run on slices."""


@dataclass(eq=False)
class Region:
    """One call of a block on slices.

    Attributes:
        dim: dimension that is split, of 0 and 1, in the arguments of the block.
        length: size of that dimension, of the whole.
        batch: size of the other one of these dimensions.
        group: the ranks, in the order of their slices.
        exchange: how ranks share attention; None if the batch is split, so that they need not.
        known: whether each attention and dropout in the call acts on slices, as the trial found
            out; empty in a trial.
        found: the same for those that have run so far.
        gathered: the last input of split layers that was gathered.
    """

    dim: int
    length: int
    batch: int
    group: ProcessGroup
    exchange: Exchange | None
    known: Sequence[bool] = ()
    found: list[bool] = field(default_factory=list)
    gathered: Any = None

    current: ClassVar[Region | None] = None
    """The region that runs now in this process."""

    def replicate(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return replicated tensors for the call, whose gradients add up over the ranks."""
        return replicate_parameters(self.group, *tensors)

    def anew(self) -> Region:
        """Return the same region for another call, in which nothing is known."""
        return replace(self, known=(), found=[], gathered=None)

    @staticmethod
    @contextmanager
    def inactive() -> Iterator[None]:
        """Let no region run in the body."""
        before, Region.current = Region.current, None
        try:
            yield
        finally:
            Region.current = before

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the body be the region."""
        before, Region.current = Region.current, self
        try:
            yield
        finally:
            Region.current = before

    def is_split(self, size: int) -> bool:
        """Whether a dimension of ``size`` is split, for the next operation.

        In a trial, it is if it has the size of a slice.  Another dimension may have this size in
        other calls, so they follow the trial.

        Raises:
            NotSplittableError: the operation had a slice in the trial, and has none now.
        """
        index = len(self.found)
        split = self.known[index] if index < len(self.known) else size == self.size
        if split and size != self.size:
            raise NotSplittableError("operations in it have other shapes than in its trial")
        self.found.append(split)
        return split

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes of the ranks' slices."""
        return chunk_sizes(self.length, self.group.size())

    @property
    def start(self) -> int:
        """Position of this rank's first element in the sequence."""
        return sum(self.sizes[: self.group.rank()])

    @property
    def size(self) -> int:
        """Size of this rank's slice."""
        return self.sizes[self.group.rank()]

    def is_slice(self, value: Any) -> bool:
        """Whether a value has the size of a slice."""
        is_deep = isinstance(value, Tensor) and value.dim() > self.dim
        return bool(is_deep and value.shape[self.dim] == self.size)

    def slice_of(self, value: Any) -> Any:
        """Return this rank's slice of a tensor with all positions, and any other value as it is."""
        is_deep = isinstance(value, Tensor) and value.dim() > self.dim
        if not is_deep or value.shape[self.dim] != self.length:
            return value
        return self.layout(value.shape, self.dim).part_of(value)

    def has_positions(self, tensor: Tensor, size: int) -> bool:
        """Whether a tensor has ``size`` positions of each sequence, as dimensions or as rows."""
        is_rows = tensor.dim() == 2 and tensor.shape[0] == self.batch * size
        return is_rows or tensor.shape[:2] == self._positions(size)

    def with_positions(self, tensor: Tensor, size: int) -> Tensor:
        """Return a view whose first two dimensions are those of the block's arguments.

        Args:
            tensor: shape (batch, positions, ...), or positions first; or (batch * positions,
                features).
            size: number of positions: of the slice, or of the whole.

        Raises:
            NotSplittableError: the tensor has another shape.
        """
        if not self.has_positions(tensor, size):
            raise NotSplittableError(
                f"a linear layer in it is called with a tensor of shape {tuple(tensor.shape)}, "
                "which has no dimension of the sequence"
            )
        return tensor.unflatten(0, self._positions(size)) if tensor.dim() == 2 else tensor

    def _positions(self, size: int) -> tuple[int, int]:
        return (self.batch, size) if self.dim else (size, self.batch)

    def layout(self, shape: torch.Size, dim: int) -> ShardLayout:
        """Return how a whole tensor of ``shape`` is split along ``dim``."""
        return ShardLayout(shape, dim, self.group)

    def layout_of_slice(self, part: Tensor, dim: int) -> ShardLayout:
        """Return how the tensor is split of which ``part`` is this rank's slice."""
        shape = list(part.shape)
        shape[dim] = self.length
        return self.layout(torch.Size(shape), dim % part.dim())

    def check_gradients(self, outputs: Sequence[Any] | None, inputs: Sequence[Tensor]) -> None:
        """Check that the backward pass of a call makes the same sums on all ranks; collective.

        Args:
            outputs: this rank's, of the call; None if it has failed here.
            inputs: arguments and parameters of the call.

        Raises:
            NotSplittableError: one rank uses parameters, and another one none, as where each sample
                goes to an expert or to none; or the call has failed on a rank.
        """
        own = [False] * len(inputs) if outputs is None else reaches(outputs, inputs)
        flags = torch.tensor([outputs is None, *own], dtype=torch.int32)
        all_reduce(flags, self.group).wait()
        failed, used = flags[0], flags[1:]
        if bool(failed):
            raise NotSplittableError("it fails on the part of a rank")
        if not bool(((used == 0) | (used == self.group.size())).all()):
            raise NotSplittableError("its parts do not all use the same parameters")

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """Return the whole tensor, for computations that are the same on all ranks."""
        return gather_parts(part, self.layout_of_slice(part, dim))
