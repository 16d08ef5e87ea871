"""Groups the objects that analyse the losses of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.rank.batch_dependence import BatchDependenceDetector

from .diagnostics import LossDiagnostics
from .divisor_agreement import DivisorAgreement
from .loss_state import LossState


@dataclass(frozen=True)
class LossAnalysis:
    """The objects that analyse the losses of a cell.

    Attributes:
        state: losses of the current step.
        diagnostics: notifies the user of losses that ranks cannot reproduce.
        divisors: the ranks' agreement on numbers that divide sums.
        batch_dependence: follows samples through a step, to see whether they affect one another.
    """

    state: LossState
    diagnostics: LossDiagnostics
    divisors: DivisorAgreement
    batch_dependence: BatchDependenceDetector
