"""The tracker's run that the notebook has begun: cells go on with it in their ranks.

Of all trackers this is wandb, whose runs other processes may write to.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

begun_here: list[Any] = []
"""In a rank, the runs that its cell has begun; they end with it."""


@dataclass(frozen=True)
class TrackedRun:
    """A run of wandb: its id, empty if it is disabled, and the values of its config."""

    id: str
    config: dict[str, Any]


def capture() -> TrackedRun | None:
    """Return the notebook's run; None where it has begun none."""
    run = _current("run")
    if run is None:
        return None
    with suppress(Exception):  # whatever a library of any version may raise: it costs no launch
        return TrackedRun("" if run.settings.mode == "disabled" else run.id, dict(run.config))
    return None


def end(exit_code: int | None) -> None:
    """End the notebook's run if the cell has ended it; None stands for one that goes on."""
    run = _current("run")
    if run is not None and exit_code is not None:
        run.finish(exit_code)


def name_of(obj: Any) -> str:
    """Return what wandb calls ``obj`` if that is the notebook's run, or its config or summary.

    Every process has such objects of its own, which stand for one another; others have no name.
    """
    if _current("run") in begun_here:
        return ""
    return next((name for name in ("run", "config", "summary") if _current(name) is obj), "")


def _current(name: str) -> Any:
    """Return what wandb has under ``name``, without importing it or looking for a run."""
    module = sys.modules.get("wandb")
    return vars(module).get(name) if module else None
