"""How ranks are ended: in stages, so that what was trained can be written back.

====================  =========================================================
before                with --checkpoint-every, a checkpoint of a run that is stopped,
                      whose time is over, or that the system ends
0 s                   SIGINT to all: the cell gets a KeyboardInterrupt, and rank 0
                      writes its result
0.3 s                 SIGINT again: the first may have ended a shell command, or been
                      swallowed
0.6 s, 1.5 s          SIGKILL to ranks other than 0; this unblocks a rank 0 that waits
                      for them in a collective.  The later time is for a model that is
                      sharded over ranks, until it is gathered
1.2 s, 1.4 s          SIGINT twice more, then every half second
1.7 s                 SIGKILL to rank 0, unless it has noticed an interrupt, or is
                      writing its result
12 s                  SIGKILL to rank 0, unless it is writing its result
60 s                  SIGKILL to all, unless rank 0 is writing its result
300 s                 SIGKILL to whatever is left
====================  =========================================================

The times of 0.6 to 1.7 s are multiplied by ``RankProcesses.patience``.

While a rank's cell handles the interrupt, which it reports when another one arrives, or ends a
step together with other ranks, the stages are suspended, for ``INTERRUPT_GRACE`` seconds at most.
SIGINT is repeated every half second meanwhile, for a cell that only swallows it.

Once rank 0 has ended, nobody writes a result.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from nbmgpu.runs.events import RunEnding
from nbmgpu.runs.folder import (
    COLLECTING_FILE,
    HANDLING_FILE,
    HOLDING_FILE,
    INTERRUPT_GRACE,
    INTERRUPTED_FILE,
)

from .final_checkpoint import FinalCheckpoint
from .rank_processes import RankProcesses

REPEAT, FRESH = 0.5, 0.8
"""Seconds between SIGINTs to a cell that handles one, and for which its file says that it does."""

LATEST = INTERRUPT_GRACE + 2
"""Seconds after which rank 0 is killed, also if it has noticed an interrupt."""


class Termination:
    """The end of a run: how it ends, and which stages have been carried out.

    Attributes:
        ending: how the run ends; ``finished`` unless ``start`` is called.
        detail: the reason, for people; may be empty.
        force: whether all ranks were killed at once.
    """

    def __init__(self, ranks: RankProcesses, folder: Path, checkpoint: FinalCheckpoint) -> None:
        """Prepare to end ``ranks`` of the run in ``folder``, after its final ``checkpoint``."""
        self.ranks = ranks
        self.folder = folder
        self._checkpoint = checkpoint
        self._asked_to_end: str | None = None
        self.ending: RunEnding = "finished"
        self.detail = ""
        self.force = False
        self._rank_0_has_ended = False
        self._start: float | None = None
        self._advanced = self._repeated = self._suspended = 0.0
        again = [0.3, 1.2, 1.4, *(1.4 + REPEAT * number for number in range(1, 21))]
        stages: list[tuple[float, Callable[[], None]]] = [
            (0.0, lambda: ranks.signal(signal.SIGINT)),
            *((seconds, lambda: self._unless(signal.SIGINT)) for seconds in again),
            (0.6 * ranks.patience, lambda: self._kill_others(unless=HOLDING_FILE)),
            (1.5 * ranks.patience, self._kill_others),
            (1.7 * ranks.patience, lambda: self._unless(signal.SIGKILL, INTERRUPTED_FILE)),
            (LATEST, lambda: self._unless(signal.SIGKILL)),
            (60.0, lambda: self._unless(signal.SIGKILL)),
            (300.0, lambda: ranks.signal(signal.SIGKILL)),
        ]
        self._stages = sorted(stages, key=itemgetter(0))

    @property
    def started(self) -> bool:
        """Whether ranks are being ended."""
        return self._start is not None

    def end_soon(self, detail: str) -> None:
        """End the run as failed, from the next ``advance`` on, though its ranks are well.

        For a signal handler: a job scheduler announces the end of a job.

        Args:
            detail: the reason, for people.
        """
        self._asked_to_end = detail

    def start(
        self, ending: RunEnding, detail: str = "", force: bool = False, well: bool = False
    ) -> None:
        """Start to end the run, unless that has started.

        The first ``ending`` holds, and the first reason: a kernel that is shut down interrupts its
        run, and then ends.

        Args:
            ending: how it ends.
            detail: the reason, for people.
            force: kill at once in any case.
            well: whether ranks can write a checkpoint, though the run has failed.
        """
        if not self.started:
            self.ending, self.detail = ending, detail
            self._start = time.monotonic()
            if (well or ending in ("stopped", "timeout")) and not force:
                self._checkpoint.request()
        elif force or ending == "failed":
            self._checkpoint.give_up()
        if force and not self.force:
            self.force = True
            self.detail = self.detail or detail
            self.ranks.signal(signal.SIGKILL)

    def rank_ended(self, rank: int) -> None:
        """Note that ``rank`` has ended: without rank 0, nobody writes a result any more."""
        self._rank_0_has_ended |= rank == 0

    def withdraw(self) -> None:
        """Let a run that was stopped end as finished: its cell has reached its end."""
        self.ending, self.detail = "finished", ""

    def advance(self) -> None:
        """Carry out the stages that are due."""
        if self._asked_to_end is not None and self._start is None:
            self.start("failed", self._asked_to_end, well=True)
        if self._start is None:
            return
        if self._checkpoint.poll():
            self._start = time.monotonic()
            return
        elapsed = time.monotonic() - self._start
        passed, self._advanced = elapsed - self._advanced, elapsed
        if self._suspended < INTERRUPT_GRACE and self._is_handled():
            self._suspended += passed
            if elapsed - self._repeated > REPEAT:
                self._repeated = elapsed
                self._unless(signal.SIGINT)
            return
        elapsed -= self._suspended
        while self._stages and self._stages[0][0] <= elapsed:
            self._stages.pop(0)[1]()

    def _is_handled(self) -> bool:
        with suppress(OSError):
            return time.time() - (self.folder / HANDLING_FILE).stat().st_mtime < FRESH
        return False

    def _kill_others(self, unless: str = COLLECTING_FILE) -> None:
        if not self._has_written(unless):
            self.ranks.signal(signal.SIGKILL, others=True)

    def _unless(self, sig: signal.Signals, *files: str) -> None:
        """Signal all ranks, unless rank 0 is writing its result, or one of ``files`` is there."""
        if not any(map(self._has_written, (COLLECTING_FILE, *files))):
            self.ranks.signal(sig)

    def _has_written(self, name: str) -> bool:
        """Whether the ranks ask for time by a file; without rank 0, nobody writes a result."""
        if self._rank_0_has_ended and name == COLLECTING_FILE:
            return False
        return (self.folder / name).exists()
