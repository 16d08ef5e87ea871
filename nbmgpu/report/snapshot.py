"""A run at one moment, in parts; only changed parts are sent."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from nbmgpu.runs.events import ACTIVE_STATES
from nbmgpu.runs.run import Run

from .views.registry import RunViews

HEAVY_INTERVAL = 0.25
"""Minimum seconds between updates of heavy views, such as curves and logs."""


class Snapshot:
    """Computes what is shown of a run, and what of it has changed; the caller polls the run.

    Each part is the payload of one view (``nbmgpu.report.views``).
    """

    def __init__(self, run: Run) -> None:
        """Observe ``run``."""
        self.run = run
        self._views = RunViews(run)
        self.logs = self._views.logs
        self._last: dict[str, Any] = {}
        self._heavy_after = 0.0

    def whole(self) -> dict[str, Any]:
        """Return all parts as plain data."""
        views, moment = self._views, self._views.moment()
        parts = views.payloads(moment, heavy=False) | views.payloads(moment, heavy=True)
        return {name: plain_data(part) for name, part in parts.items()}

    def changed(self) -> dict[str, Any]:
        """Return the parts that have changed since the last call, as plain data.

        Heavy views are updated less often, for at most a tenth of the time, until the run has
        ended.
        """
        moment = self._views.moment()
        parts = self._views.payloads(moment, heavy=False)
        begun = time.monotonic()
        if moment.state not in ACTIVE_STATES or begun >= self._heavy_after:
            parts |= self._views.payloads(moment, heavy=True)
            now = time.monotonic()
            self._heavy_after = now + max(HEAVY_INTERVAL, 10 * (now - begun))
        new = {n: part for n, part in parts.items() if n not in self._last or part != self._last[n]}
        self._last |= new
        return {name: plain_data(part) for name, part in new.items()}


def plain_data(part: Any) -> Any:
    """Return a payload, of dataclasses and lists, as plain data."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.asdict(part)
    return [plain_data(item) for item in part] if isinstance(part, list) else part
