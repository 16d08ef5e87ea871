"""A comparison in the output of its cell, row by row, and as it stays there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .rendering import as_html, as_text

if TYPE_CHECKING:
    from .runner import Contest

INTERVAL = 0.25
"""Seconds between two updates."""


class LiveComparison:
    """Shows one contest: in Jupyter a table that fills, elsewhere a line for each run."""

    def __init__(self, contest: Contest) -> None:
        """Show ``contest``."""
        self.contest = contest
        self._handle: Any = None
        self._rests_until = 0.0
        self._told = 0

    def start(self) -> None:
        """Put the table up."""
        if not self.contest.surroundings.in_jupyter:
            return
        from IPython.display import display

        self._handle = display(self._data(), raw=True, display_id=True)

    def take(self) -> None:
        """Show what is new, a few times a second at most."""
        if self._handle is None:
            for trial in self.contest.trials[self._told :]:
                self._told += 1
                print(f"{trial.name}: {trial.reason or trial.state}", flush=True)
        elif time.monotonic() >= self._rests_until:
            self._rests_until = time.monotonic() + INTERVAL
            self._handle.update(self._data(), raw=True)

    def finish(self) -> None:
        """Leave the whole of it, which needs no kernel."""
        self.take()
        if not self.contest.trials:  # the cell cannot run anywhere, and an error says why
            if self._handle is not None:
                self._handle.update({"text/plain": ""}, raw=True)
        elif self._handle is None:
            print(as_text(self.contest.comparison))
        else:
            self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        comparison, running = self.contest.comparison, self.contest.running
        return {"text/html": as_html(comparison, running), "text/plain": as_text(comparison)}
