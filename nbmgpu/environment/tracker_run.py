"""The tracker's run that the notebook has begun: cells go on with it in their ranks.

Of all trackers this is wandb, whose runs other processes may write to.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

begun_here: list[Any] = []
"""In a rank, the runs that its cell has begun; they end with it."""


@dataclass(frozen=True)
class TrackedRun:
    """A run of wandb, as far as others can be like it.

    Attributes:
        id, name, project, entity: as wandb calls it; entity and project may be None.
        config: its values.
        folder: where its files are, None for wandb's own choice.
        resumed: whether it goes on with a run of an earlier process.
        disabled: whether nothing is logged, and no process can join it.
        muted: whether nothing is to be logged anywhere, also to runs that the cell begins.
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
class LeftRun:
    """What a cell has made of the notebook's run: its config, and how it has ended it, if so."""

    id: str
    config: dict[str, Any]
    exit_code: int | None = None


def capture(tracks: bool = True) -> TrackedRun | None:
    """Return the notebook's run, None where it has begun none.

    Args:
        tracks: whether the cell shall log to it; else it logs nothing.
    """
    run, found = _current("run"), None
    if run is not None:
        with suppress(Exception):  # whatever a library of any version may raise: it costs no launch
            found = described(run)
    return found if tracks else replace(found or TrackedRun(), disabled=True, muted=True)


def described(run: Any) -> TrackedRun:
    """Return what is to be known of a run of wandb."""
    return TrackedRun(
        id=run.id,
        name=run.name,
        project=run.project,
        entity=run.entity,
        config=dict(run.config),
        folder=run.dir,
        resumed=bool(run.resumed),
        disabled=run.settings.mode == "disabled",
    )


def take(left: LeftRun | None) -> None:
    """Let the notebook's run be as the cell has left it, if it is still the same one."""
    run = _current("run")
    if run is None or left is None or run.id != left.id:
        return
    changed = {k: v for k, v in left.config.items() if k not in run.config or run.config[k] != v}
    if changed:
        run.config.update(changed, allow_val_change=True)
    if left.exit_code is not None:
        run.finish(left.exit_code)


def name_of(obj: Any) -> str:
    """Return what wandb calls ``obj`` if that is the notebook's run, or its config or summary.

    Every process has such objects of its own, which stand for one another; others have no name.
    """
    if any(_current("run") is run for run in begun_here):
        return ""
    return next((name for name in ("run", "config", "summary") if _current(name) is obj), "")


def _current(name: str) -> Any:
    """Return what wandb has under ``name``, without importing it or looking for a run."""
    module = sys.modules.get("wandb")
    return vars(module).get(name) if module else None
