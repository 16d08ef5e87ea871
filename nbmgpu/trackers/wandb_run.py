"""The notebook's run of wandb, as far as another process can join or imitate it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
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
    """

    id: str | None = None
    name: str | None = None
    project: str | None = None
    entity: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None
    resumed: bool = False
    disabled: bool = False


@dataclass(frozen=True)
class TrackerRunUpdate:
    """How a cell has left the notebook's run: its config, and its exit code if it ended there."""

    id: str
    config: dict[str, Any]
    exit_code: int | None = None


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


def name_of(obj: Any) -> str:
    """Return ``"run"``, ``"config"`` or ``"summary"`` if ``obj`` is that of the notebook's run.

    Each process has its own, and they are sent by that name; other objects have an empty name.
    """
    if any(current("run") is run for run in started_in_rank):
        return ""
    return next((name for name in ("run", "config", "summary") if current(name) is obj), "")


def current(name: str) -> Any:
    """Return the attribute ``name`` of wandb, without importing it or triggering its lookups."""
    module = sys.modules.get("wandb")
    return vars(module).get(name) if module else None
