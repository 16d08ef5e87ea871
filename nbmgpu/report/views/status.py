"""The status of a run: its state and times."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.report import text_format
from nbmgpu.report.progress import remaining
from nbmgpu.report.stopping import Stopping
from nbmgpu.report.text_format import Tone
from nbmgpu.runs.events import ACTIVE_STATES, RunState
from nbmgpu.runs.run import Run

from .base import PanelView, RunMoment

REPLACED_WITHIN = 60.0
"""Seconds within which a kernel that lives replaces a run."""


@dataclass(frozen=True)
class RunStatus:
    """The run's state, elapsed and remaining time (empty when unknown)."""

    state: RunState
    label: str
    tone: Tone
    elapsed: str
    remaining: str
    over: bool
    stopping: Stopping


class StatusView(PanelView):
    """The state and times of the run."""

    def payload(self, moment: RunMoment) -> RunStatus:
        """Return the status."""
        return run_status(moment.run, moment.state, moment.stopping, moment.now, moment.epochs)


def run_status(run: Run, state: RunState, stopping: Stopping, now: float, epochs: int) -> RunStatus:
    """Return the status of a run in ``state`` with a total of ``epochs`` (0 when unknown)."""
    replaced = state == "failed" and _is_being_replaced(run, now)
    over = state not in ACTIVE_STATES and not replaced
    end = run.view.last_time if over else now
    label = "starting again" if replaced else "stopping" if stopping else _label(run, state)
    return RunStatus(
        state=state,
        label=label,
        tone="idle" if replaced else text_format.TONES[state],
        elapsed=text_format.clock(max(end - run.record.created, 0.0), tenths=over),
        remaining="" if over or stopping else remaining(run.view, now, epochs),
        over=over,
        stopping=stopping,
    )


def _is_being_replaced(run: Run, now: float) -> bool:
    """Whether a rank has asked for a start with whole batches, which the kernel carries out.

    The kernel then deletes the run; one that it has left behind has failed.
    """
    return run.view.restart is not None and now - run.view.last_time < REPLACED_WITHIN


def _label(run: Run, state: RunState) -> str:
    """Return what the run does: ranks may have finished before what compares them."""
    has_finished = all(rank.state == "finished" for rank in run.view.ranks)
    is_verifying = state == "running" and run.record.options.verify > 0 and has_finished
    return "verifying" if is_verifying else text_format.state_word(state)
