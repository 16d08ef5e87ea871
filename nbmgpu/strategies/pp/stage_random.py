"""Random numbers of stages: those of one device while each stage has the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nbmgpu.environment import random_state
from nbmgpu.errors import StrategyError, format_message

from .plan import SegmentPlan
from .transport import Transport


class StageRandom:
    """The generators of all ranks, during one forward pass of a segment.

    With the whole batch, each stage draws after the one before it, as on one device.  With
    microbatches, stages run at the same time, and each draws from a stream of its own.
    """

    def __init__(self, plan: SegmentPlan, transport: Transport) -> None:
        """Prepare the streams of the stages; the same on all ranks."""
        self._plan = plan
        self._transport = transport
        self._is_shared = plan.draws and plan.microbatches == 1
        self._seed: int | None = None
        if plan.draws and not self._is_shared:
            self._seed = int(torch.randint(1 << 62, ()))

    @contextmanager
    def of_stage(self, index: int) -> Iterator[None]:
        """Run the body, a stage, with its stream.

        Raises:
            StrategyError: it has drawn random numbers, and did not in the trials of its blocks.
        """
        if self._seed is not None:
            with random_state.kept():
                torch.manual_seed(self._seed + index)
                yield
            return
        before = random_state.capture()
        yield
        unexpected = not self._is_shared and random_state.capture() != before
        if unexpected:
            stage = self._plan.stages[index]
            name = self._plan.calls[stage.first].block.name
            raise StrategyError(
                format_message(
                    f"Under pp, layer {name} or one after it draws random numbers in some calls "
                    "only",
                    "Whether a layer draws must depend on its mode and arguments",
                    "%%mgpu --strategy tp",
                )
            )

    def end_of_stage(self, index: int) -> None:
        """Give all ranks the state in which a stage has left the generators; collective."""
        if not self._is_shared:
            return
        owner = self._plan.stages[index].owner
        random_state.restore(self._transport.broadcast_object(random_state.capture, owner))
