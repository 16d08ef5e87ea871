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
    over = state not in ACTIVE_STATES
    end = run.view.last_time if over else now
    return RunStatus(
        state=state,
        label="stopping" if stopping else _label(run, state),
        tone=text_format.TONES[state],
        elapsed=text_format.clock(max(end - run.record.created, 0.0), tenths=over),
        remaining="" if over or stopping else remaining(run.view, now, epochs),
        over=over,
        stopping=stopping,
    )


def _label(run: Run, state: RunState) -> str:
    """Return what the run does: ranks may have finished before what compares them."""
    has_finished = all(rank.state == "finished" for rank in run.view.ranks)
    is_verifying = state == "running" and run.record.options.verify > 0 and has_finished
    return "verifying" if is_verifying else text_format.state_word(state)
