"""How ranks are ended: in stages, so that what was trained comes back where it can.

====================  =========================================================
0 s                   SIGINT to all: the cell gets a KeyboardInterrupt, and rank 0
                      writes what there is
0.3 s                 SIGINT again: the first may have ended a shell command, or been
                      swallowed
0.6 s, 1.5 s          SIGKILL to ranks other than 0; a rank 0 blocked in a
                      collective with them is freed by that.  The later time is for a
                      model that is spread over ranks, until it is gathered
1.2 s, 1.4 s, 1.7 s   SIGINT twice more, SIGKILL to rank 0, unless it is writing its result
60 s                  SIGKILL to whatever is left
====================  =========================================================

While a rank's cell handles the interrupt, which it says when another one comes, all that waits,
ten seconds at most; SIGINT comes every half second meanwhile, for a cell that only swallows it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nbmgpu.runs.events import RunEnding
from nbmgpu.runs.run import COLLECTING_FILE, HANDLING_FILE, HOLDING_FILE

from .rank_processes import Ranks

REMIND, FRESH = 0.5, 0.8
"""Seconds between SIGINTs to a cell that handles one, and for which the file tells that it does."""

GRACE = 10.0
"""Seconds that it has for that."""


class Ending:
    """The end of a run, once it has begun: its kind, and the stages gone through."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        """Be ready to end ``ranks``; until ``begin`` the run counts as finished by itself."""
        self.ranks = ranks
        self.folder = folder
        self.kind: RunEnding = "finished"
        self.detail = ""
        self.force = False
        self._start: float | None = None
        self._advanced = self._reminded = self._held = 0.0
        self._stages: list[tuple[float, Callable[[], None]]] = [
            (0.0, lambda: ranks.signal(signal.SIGINT)),
            (0.3, lambda: self._unless_collecting(signal.SIGINT)),
            (0.6, lambda: self._kill_others(unless=HOLDING_FILE)),
            (1.2, lambda: self._unless_collecting(signal.SIGINT)),
            (1.4, lambda: self._unless_collecting(signal.SIGINT)),
            (1.5, lambda: self._kill_others(unless=COLLECTING_FILE)),
            (1.7, lambda: self._unless_collecting(signal.SIGKILL)),
            (60.0, lambda: ranks.signal(signal.SIGKILL)),
        ]

    @property
    def begun(self) -> bool:
        """Whether ranks are being ended."""
        return self._start is not None

    def begin(self, kind: RunEnding, detail: str = "", force: bool = False) -> None:
        """Begin to end the run, unless that has begun; ``force`` kills at once in any case."""
        if not self.begun:
            self.kind, self.detail = kind, detail
            self._start = time.monotonic()
        if force and not self.force:
            self.force = True
            self.ranks.signal(signal.SIGKILL)

    def advance(self) -> None:
        """Go through the stages that are due."""
        if self._start is None:
            return
        elapsed = time.monotonic() - self._start
        passed, self._advanced = elapsed - self._advanced, elapsed
        if self._held < GRACE and self._is_handled():
            self._held += passed
            if elapsed - self._reminded > REMIND:
                self._reminded = elapsed
                self._unless_collecting(signal.SIGINT)
            return
        elapsed -= self._held
        while self._stages and self._stages[0][0] <= elapsed:
            self._stages.pop(0)[1]()

    def _is_handled(self) -> bool:
        with suppress(OSError):
            return time.time() - (self.folder / HANDLING_FILE).stat().st_mtime < FRESH
        return False

    def _kill_others(self, unless: str) -> None:
        if not (self.folder / unless).exists():
            self.ranks.signal(signal.SIGKILL, others=True)

    def _unless_collecting(self, sig: signal.Signals) -> None:
        if not (self.folder / COLLECTING_FILE).exists():
            self.ranks.signal(sig)
