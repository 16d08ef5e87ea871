"""Calls of blocks, and what is known about the blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_unflatten

if TYPE_CHECKING:
    from .block import PipelineBlock

Mode = Literal["exact", "random", "whole"]
"""Whether a block has the same outputs on parts of a batch: yes, but for random numbers, no."""


@dataclass(frozen=True)
class Reference:
    """An output of an earlier call of the segment, among the arguments of a call.

    Attributes:
        call: index of the call.
        output: index of the output among its leaves.
    """

    call: int
    output: int


@dataclass(frozen=True)
class Input:
    """A tensor from outside of the segment, among the arguments of a call.

    Attributes:
        index: its index in ``Segment.inputs``.
    """

    index: int


@dataclass(frozen=True)
class BlockInfo:
    """What a trial has found out about a block.

    Attributes:
        tensors: for each leaf of the output, whether it is a tensor; others are None.
        batched_outputs: for each leaf, whether its first dimension is the batch.
        batched_inputs: for each leaf of the arguments, likewise.
        mode: whether it may run on parts of a batch.
        draws: whether it draws random numbers.
        changes: whether a call changes the block, such as running statistics.
        spec: structure of its output.
    """

    tensors: tuple[bool, ...]
    batched_outputs: tuple[bool, ...]
    batched_inputs: tuple[bool, ...]
    mode: Mode
    draws: bool
    changes: bool
    spec: Any


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a block.

    Attributes:
        block: the block.
        forward: its own forward function.
        leaves: its arguments; tensors are an ``Input`` or a ``Reference``.
        spec: structure of the arguments, ``(args, kwargs)``.
        info: what is known about the block.
        is_training: whether the block is in training mode.
    """

    block: PipelineBlock
    forward: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec
    info: BlockInfo
    is_training: bool

    @property
    def structure(self) -> Hashable:
        """What a plan depends on."""
        arguments = tuple(float if isinstance(x, float) else repr(x) for x in self.leaves)
        return id(self.block), self.is_training, self.spec, arguments, self.info

    def run(self, find: Callable[[Any], Tensor]) -> list[Any]:
        """Run the block on tensors that ``find`` returns; return the leaves of its output.

        Raises:
            StrategyError: its output has another structure than in the trial.
        """
        leaves = [find(x) if isinstance(x, Input | Reference) else x for x in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.block.run(self.forward, args, kwargs, self.info)
