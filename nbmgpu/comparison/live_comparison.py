"""The output of a comparison cell: a table that fills, then the final result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .rendering import as_html, as_text

if TYPE_CHECKING:
    from .runner import ComparisonRunner

INTERVAL = 0.25
"""Seconds between two updates."""


class LiveComparison:
    """Shows a comparison: in Jupyter a table that fills, elsewhere a line per run."""

    def __init__(self, runner: ComparisonRunner) -> None:
        """Show ``runner``."""
        self.runner = runner
        self._handle: Any = None
        self._next_update = 0.0
        self._printed = 0

    def start(self) -> None:
        """Display the table."""
        if not self.runner.context.in_jupyter:
            return
        from IPython.display import display

        self._handle = display(self._data(), raw=True, display_id=True)

    def update(self) -> None:
        """Show new results, a few times per second at most."""
        if self._handle is None:
            for trial in self.runner.trials[self._printed :]:
                self._printed += 1
                print(f"{trial.name}: {trial.reason or trial.state}", flush=True)
        elif time.monotonic() >= self._next_update:
            self._next_update = time.monotonic() + INTERVAL
            self._handle.update(self._data(), raw=True)

    def finish(self) -> None:
        """Show the final result, which needs no kernel."""
        self.update()
        if not self.runner.trials:  # the cell cannot run, and an error says why
            if self._handle is not None:
                self._handle.update({"text/plain": ""}, raw=True)
        elif self._handle is None:
            print(as_text(self.runner.comparison))
        else:
            self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        comparison, running = self.runner.comparison, self.runner.running
        return {"text/html": as_html(comparison, running), "text/plain": as_text(comparison)}
