"""The runs of one launcher: with ``--hold``, its ranks go on with the next cell of the notebook."""

from __future__ import annotations

import signal
from collections.abc import Callable

from nbmgpu.engines.final_checkpoint import FinalCheckpoint
from nbmgpu.engines.supervision import supervise, waiter
from nbmgpu.engines.termination import Termination
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended, RunEnding, Started
from nbmgpu.runs.held_ranks import following_run, mark_all_held
from nbmgpu.runs.run import Run
from nbmgpu.system.processes import own_process

from .processes import LocalRanks


class SupervisedRuns:
    """The run that the ranks of a launcher run now, and what ends it.

    Attributes:
        run: the run.
        events: the writer of its ``events/launcher.jsonl``.
        termination: carries out its end.
        ranks: the ranks.
        is_over: whether the end of the run has been reported.
    """

    def __init__(self, run: Run, events: EventWriter, ranks: LocalRanks) -> None:
        """Begin with the first run, whose launcher has reported that it has started."""
        self.ranks = ranks
        self._ended: list[tuple[int, int]] = []  # ranks whose end has not been reported
        self._begin(run, events)

    def _begin(self, run: Run, events: EventWriter) -> None:
        self.run, self.events, self.is_over = run, events, False
        self.termination = Termination(self.ranks, run.folder, FinalCheckpoint(run, events))

    def supervise(self, on_next: Callable[[Run], None]) -> None:
        """Return when every rank has ended; the end of the last run may not be reported yet.

        Args:
            on_next: called with each run but the first before it is supervised.
        """
        while True:
            ended, self._ended = self._ended, []
            supervise(self.run, self.ranks, self.events, self.termination, ended)
            if not self.ranks.alive():
                return
            run = None if self.termination.started else self._wait_for_next()
            if run is None:
                self._end_ranks()
                return
            on_next(run)
            events = EventWriter(run.events_path("launcher"), LAUNCHER)
            events.emit(Started, **own_process())
            self._begin(run, events)

    def _wait_for_next(self) -> Run | None:
        """Report the end of a run whose ranks are held; return the next one, if there is one.

        There is none if a rank ends, the kernel ends them, or the run folder is removed.
        """
        folder, wait = self.run.folder, waiter()
        mark_all_held(folder)
        self.run.refresh()
        ending: RunEnding = "finished" if self.run.view.failure is None else "failed"
        self.events.emit(Ended, ending=ending, detail="")
        self.events.close()
        self.is_over = True
        while not self._ended and not self.termination.started:
            self._ended = self.ranks.poll()  # before the look for the next run, which it may end
            if (following := following_run(folder)) is not None:
                return Run(following) if following != folder else None
            wait()
        return None

    def _end_ranks(self) -> None:
        """End ranks that wait for another run; nothing of them is lost that is not meant to be."""
        self.ranks.signal(signal.SIGKILL)
        wait = waiter()
        while self.ranks.alive():
            self.ranks.poll()
            wait()
