"""Which rank runs which calls of a segment, and which values it passes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from .call import Call, Input, Reference
from .segment import Segment


@dataclass(frozen=True)
class Stage:
    """Consecutive calls on one rank.

    Attributes:
        owner: the rank in the group.
        first, end: indices of the calls.
    """

    owner: int
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """How a segment runs.

    Attributes:
        stages: in the order of the calls; neighbours are on different ranks.
        calls: the calls.
        finals: the outputs that leave the segment.
        microbatches: number of parts of the batch.
        batch_size: number of samples.
        batch_input: index of an input that has the samples of all outputs; None if there is none.
    """

    stages: tuple[Stage, ...]
    calls: tuple[Call, ...]
    finals: tuple[Reference, ...]
    microbatches: int
    batch_size: int
    batch_input: int | None = None

    @staticmethod
    def of(segment: Segment, finals: list[Reference], microbatches: int) -> SegmentPlan:
        """Plan a segment.

        Args:
            segment: the segment.
            finals: the outputs that leave it.
            microbatches: number of parts of the batch.
        """
        stages: list[Stage] = []
        for index, call in enumerate(segment.calls):
            owner = call.block.owner
            if stages and stages[-1].owner == owner:
                stages[-1] = Stage(owner, stages[-1].first, index + 1)
            else:
                stages.append(Stage(owner, index, index + 1))
        calls = tuple(segment.calls)
        plan = SegmentPlan(tuple(stages), calls, tuple(finals), microbatches, segment.batch_size)
        if not may_split(segment, finals, random=True):
            return plan
        return replace(plan, batch_input=min(plan.batched_inputs, default=None))

    def bubble(self, ranks: int, microbatches: int | None = None) -> float:
        """Return the share of the time for which ranks wait if all stages take the same time.

        Args:
            ranks: number of ranks, some of which may have no stage.
            microbatches: another number of parts of the batch.
        """
        parts = microbatches or self.microbatches
        free, done = [0] * ranks, [0] * parts
        for stage in self.stages:
            for part in range(parts):
                free[stage.owner] = done[part] = max(free[stage.owner], done[part]) + 1
        return 1 - len(self.stages) * parts / (ranks * max(done))

    def _stage_of(self, call: int) -> int:
        return next(i for i, stage in enumerate(self.stages) if call < stage.end)

    @cached_property
    def passed(self) -> tuple[tuple[Reference, ...], ...]:
        """The values that leave each stage: later stages use them, or they are final."""
        last_use: dict[Reference, int] = {}
        for index, call in enumerate(self.calls):
            for leaf in call.leaves:
                if isinstance(leaf, Reference):
                    last_use[leaf] = self._stage_of(index)
        last_use.update({reference: len(self.stages) for reference in self.finals})
        return tuple(
            tuple(r for r, last in last_use.items() if self._stage_of(r.call) <= stage < last)
            for stage in range(len(self.stages))
        )

    @cached_property
    def input_users(self) -> dict[int, set[int]]:
        """The ranks that use each input, by its index."""
        users: dict[int, set[int]] = {}
        for stage in self.stages:
            for call in self.calls[stage.first : stage.end]:
                for leaf in call.leaves:
                    if isinstance(leaf, Input):
                        users.setdefault(leaf.index, set()).add(stage.owner)
        return users

    @cached_property
    def batched_inputs(self) -> frozenset[int]:
        """Indices of the inputs whose first dimension is the batch."""
        return frozenset(
            leaf.index
            for call in self.calls
            for leaf, batched in zip(call.leaves, call.info.batched_inputs, strict=True)
            if isinstance(leaf, Input) and batched
        )

    @property
    def draws(self) -> bool:
        """Whether a block draws random numbers."""
        return any(call.info.draws for call in self.calls)


def may_split(segment: Segment, finals: list[Reference], random: bool) -> bool:
    """Whether the calls of a segment may run on parts of the batch.

    Args:
        segment: the segment.
        finals: the outputs that leave it.
        random: whether they may draw other random numbers than on one device.
    """
    calls = segment.calls
    allowed = ("exact", "random") if random else ("exact",)
    if segment.batch_size < 2 or any(call.info.mode not in allowed for call in calls):
        return False
    batched: dict[int, bool] = {}
    for call in calls:
        for leaf, is_batched in zip(call.leaves, call.info.batched_inputs, strict=True):
            if isinstance(leaf, Input):
                same = batched.setdefault(leaf.index, is_batched) == is_batched
            elif isinstance(leaf, Reference):
                same = calls[leaf.call].info.batched_outputs[leaf.output] == is_batched
            else:
                same = True
            if not same:
                return False
    return all(calls[r.call].info.batched_outputs[r.output] for r in finals)
