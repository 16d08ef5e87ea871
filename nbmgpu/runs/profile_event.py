"""The event of a profiled rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .events import Event


@dataclass(frozen=True)
class StepProfile(Event):
    """What a rank spent the time of its profiled steps on; the trace is in the run folder.

    All times are seconds of the average step.  ``nbmgpu.rank.profiling.step_parts`` defines them.

    Attributes:
        first, last: numbers of the optimizer steps, from 1.
        step_time: the sum of the next four.
        compute: operations, or kernels of an accelerator.
        communication: collectives while nothing is computed.
        data: waiting for a loader.
        host: the rest.
        hidden: collectives beside computing, which is part of ``compute``.
        nbytes: size of the trace.
    """

    kind: ClassVar[str] = "profile"
    first: int
    last: int
    step_time: float
    compute: float
    communication: float
    data: float
    host: float
    hidden: float
    nbytes: int
