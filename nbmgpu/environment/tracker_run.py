"""The experiment tracker's run that the notebook has started: cells log to it from their ranks.

Supported is wandb, whose runs can be written to by several processes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

started_in_rank: list[Any] = []
"""In a rank, the runs that its cell has started; they end with the cell."""


@dataclass(frozen=True)
class TrackerRun:
    """A wandb run, as far as another process can join or imitate it.

    Attributes:
        id, name, project, entity: as in wandb; entity and project may be None.
        config: its values.
        folder: where its files are, None for wandb's own choice.
        resumed: whether it resumes a run of an earlier process.
        disabled: whether nothing is logged, and no process can join it.
        muted: whether nothing is to be logged at all, not even to runs that the cell starts.
    """

    id: str | None = None
    name: str | None = None
    project: str | None = None
    entity: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None
    resumed: bool = False
    disabled: bool = False
    muted: bool = False


@dataclass(frozen=True)
class TrackerRunUpdate:
    """How a cell has left the notebook's run: its config, and its exit code if it ended there."""

    id: str
    config: dict[str, Any]
    exit_code: int | None = None


def capture(tracks: bool = True) -> TrackerRun | None:
    """Return the notebook's run; None if it has started none.

    Args:
        tracks: whether the cell logs to it; otherwise the cell logs nothing.
    """
    run, found = _current("run"), None
    if run is not None:
        with suppress(Exception):  # some version of wandb may raise anything; the launch goes on
            found = describe_run(run)
    return found if tracks else replace(found or TrackerRun(), disabled=True, muted=True)


def describe_run(run: Any) -> TrackerRun:
    """Return the description of a wandb run."""
    return TrackerRun(
        id=run.id,
        name=run.name,
        project=run.project,
        entity=run.entity,
        config=dict(run.config),
        folder=run.dir,
        resumed=bool(run.resumed),
        disabled=run.settings.mode == "disabled",
    )


def write_back(left: TrackerRunUpdate | None) -> None:
    """Update the notebook's run to how the cell has left it, if it is still the same run."""
    run = _current("run")
    if run is None or left is None or run.id != left.id:
        return
    changed = {k: v for k, v in left.config.items() if k not in run.config or run.config[k] != v}
    if changed:
        run.config.update(changed, allow_val_change=True)
    if left.exit_code is not None:
        run.finish(left.exit_code)


def name_of(obj: Any) -> str:
    """Return ``"run"``, ``"config"`` or ``"summary"`` if ``obj`` is that of the notebook's run.

    Each process has its own, and they are sent by that name; other objects have an empty name.
    """
    if any(_current("run") is run for run in started_in_rank):
        return ""
    return next((name for name in ("run", "config", "summary") if _current(name) is obj), "")


def _current(name: str) -> Any:
    """Return the attribute ``name`` of wandb, without importing it or triggering its lookups."""
    module = sys.modules.get("wandb")
    return vars(module).get(name) if module else None
