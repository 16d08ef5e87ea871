"""Stages of about the same measured time: ``--balance time``.

Stages first have about the same number of parameters.  When a block is tried, its owner measures
it; before the first step after all have run, blocks change their owner where this makes the slowest
rank faster (torchgpipe's ``balance_by_time``, Kim et al. 2020, 2004.09910, on the real batch).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from nbmgpu.strategies.sharding.full_tensor_view import FullTensorView

from .block import PipelineBlock
from .block_time import BlockTime
from .pipeline import Pipeline
from .stacks import Stack
from .stage_balance import balance, rank_totals
from .stage_param import StageParamState

MAX_STEPS = 10
"""Steps before which it is tried: until all blocks were measured, and no graph is pending."""

GAIN = 0.95
"""Blocks move if the slowest rank then takes this fraction of the time, or less."""

MOVED = (
    "pp has divided the layers by the time that they take on this batch: {ranks}. By parameters, "
    "the slowest rank had {before:.0%} of the time."
)
STAYED = (
    "--balance time has left the stages as they are, with about the same number of parameters: "
    "{reason}. --split-points LAYERS says where stages begin."
)


class Rebalancing:
    """Moves blocks between ranks, at most once.

    Attributes:
        is_done: whether no block will move any more.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        dp_group: ProcessGroup | None,
        notice: Callable[[str, str], None],
    ) -> None:
        """Prepare for the first step.

        Args:
            pipeline: has measured blocks.
            dp_group: ranks with other samples, whose blocks have the same owners; None if there
                are none.
            notice: shows a text to the user, once per topic.
        """
        self.is_done = False
        self._pipeline = pipeline
        self._dp_group = dp_group
        self._notice = notice
        self._steps = 0

    def run(self, blocks: list[PipelineBlock], optimizers: Sequence[Optimizer]) -> bool:
        """Move blocks if it is time to; collective on all ranks.

        Args:
            blocks: the blocks of all stacks.
            optimizers: have states of their parameters.

        Returns:
            Whether parameters have moved.
        """
        self._steps += 1
        times = self._agreed_times(blocks)
        if times is None:
            self.is_done = self._steps == MAX_STEPS
            if self.is_done:
                reason = "some have not run, or have graphs without a backward pass"
                self._notice("stages-by-parameters", STAYED.format(reason=reason))
            return False
        self.is_done = True
        stacks = list(dict.fromkeys(block.stack for block in blocks))
        moved = [
            self._balance(stack, {b: t for b, t in times.items() if b.stack is stack}, optimizers)
            for stack in stacks
        ]
        return any(moved)

    def _agreed_times(self, blocks: list[PipelineBlock]) -> dict[PipelineBlock, BlockTime] | None:
        """Return the times of all blocks, the same on all ranks; None while blocks cannot move."""
        measured = self._pipeline.measured
        missing = any(block.parameters and block not in measured for block in blocks)
        waits = not blocks or missing or self._pipeline.has_pending_graphs
        flag = torch.tensor(float(waits), device=self._pipeline.transport.device)
        dist.all_reduce(flag)
        if flag.item():
            return None
        times = [measured.get(block, BlockTime(0.0, True)) for block in blocks]
        pairs = [[time.seconds, float(not time.keeps_objects)] for time in times]
        total = torch.tensor(pairs, device=self._pipeline.transport.device)
        if self._dp_group is not None:
            dist.all_reduce(total, group=self._dp_group)
        agreed = (BlockTime(seconds, not changed) for seconds, changed in total.tolist())
        return dict(zip(blocks, agreed, strict=True))

    def _balance(
        self,
        stack: Stack,
        times: Mapping[PipelineBlock, BlockTime],
        optimizers: Sequence[Optimizer],
    ) -> bool:
        """Move the blocks of one stack; return whether any has moved."""
        sizes = [round(1e9 * each.seconds) for each in times.values()]
        stages = balance(sizes, max(stack.stages) + 1)
        before, after = (rank_totals(sizes, s, stack.ranks) for s in (stack.stages, stages))
        keeper = next((b for b, time in times.items() if not time.keeps_objects), None)
        if max(after) > GAIN * max(before):
            self._notice("stages-by-parameters", STAYED.format(reason="others are no faster"))
            return False
        if keeper is not None:
            reason = f"layer {keeper.name} keeps values of its own, which only its rank has"
            self._notice("stages-by-parameters", STAYED.format(reason=reason))
            return False
        fresh = dataclasses.replace(stack, stages=stages)
        for block in times:
            moves = block.owner != fresh.owner(block.index)
            block.stack = fresh
            for state in dict.fromkeys(owned.state for owned in block.parameters) if moves else ():
                self._move(state, fresh.owner(block.index), optimizers)
        self._pipeline.forget_plans()
        self._notice("stages-by-time", _describe(fresh, before, after))
        return True

    def _move(self, state: StageParamState, owner: int, optimizers: Sequence[Optimizer]) -> None:
        """Move a parameter, its gradient and its optimizer states to another rank; collective."""
        state.move_to(owner)
        for optimizer in optimizers:
            of_parameter: dict[str, Any] = optimizer.state.get(state.parameter, {})
            for value in of_parameter.values():
                if isinstance(value, FullTensorView):
                    value._shard.move_to(state.shard.layout)
                    value._shard.local._view = value  # type: ignore[attr-defined]


def _describe(stack: Stack, before: list[float], after: list[float]) -> str:
    total = sum(after)
    ranks = []
    for rank, size in enumerate(after):
        own = [i for i in range(len(stack.blocks)) if stack.owner(i) == rank]
        names = [stack.names[i] for i in own if i - 1 not in own or i + 1 not in own]
        ranks.append(f"rank {rank} has {' to '.join(names)} ({size / total:.0%} of the time)")
    return MOVED.format(ranks=", ".join(ranks), before=max(before) / total)
