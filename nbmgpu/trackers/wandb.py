"""wandb: ranks attach to the notebook's run, as several processes can write to one."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .base import PickledType, RankLogging, Tracker

FINISHED_RUN_ATTRIBUTES = (
    "_settings",
    "_config",
    "_start_time",
    "_step",
    "_starting_step",
    "_init_pid",
)
"""Attributes from which a run reports its name and id."""

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
    if any(_current("run") is run for run in started_in_rank):
        return ""
    return next((name for name in ("run", "config", "summary") if _current(name) is obj), "")


def _current(name: str) -> Any:
    """Return the attribute ``name`` of wandb, without importing it or triggering its lookups."""
    module = sys.modules.get("wandb")
    return vars(module).get(name) if module else None


def reduce_run(run: Any) -> Any:
    """Reduce the notebook's run to a reference, and a run that is or will be finished to its name.

    Other runs are found by their id, as wandb does.
    """
    state = vars(run)
    over = state.get("_is_finished") or any(run is begun for begun in started_in_rank)
    disabled = type(run).__name__ == "NoopRun"
    if name_of(run) or not (over or disabled):
        return reduce_run_attribute(run)
    names = (*FINISHED_RUN_ATTRIBUTES, *(("summary", "_interface") if disabled else ()))
    kept = {name: state[name] for name in names if name in state}
    return _finished_run, (type(run), {**kept, "_attach_id": None, "_is_finished": True})


def _finished_run(kind: Any, state: dict[str, Any]) -> Any:
    run = kind.__new__(kind)
    run.__dict__.update(state)
    return run


def reduce_run_attribute(obj: Any) -> Any:
    """Reduce an attribute of the current wandb run to its name in the module ``wandb``."""
    name = name_of(obj)
    return (getattr, (sys.modules["wandb"], name)) if name else None


def reduce_config(config: Any) -> Any:
    """Reduce a wandb config to its values, or to its name if it is that of the current run."""
    if name := name_of(config):
        return getattr, (sys.modules["wandb"], name)
    return _config, (type(config), dict(config))


def _config(kind: Any, values: dict[str, Any]) -> Any:
    config = kind()
    config.update(values)
    return config


def reduce_logger(logger: Any) -> Any:
    """Omit the run of Lightning's logger; the process's own run is used.

    The default reduction starts a run in order to pickle it.
    """
    state = {**vars(logger), "_experiment": None, "_attach_id": None}
    return copyreg.__newobj__, (type(logger),), state  # type: ignore[attr-defined]


class Wandb(Tracker):
    """wandb, whose module-level functions log to the current run."""

    library = "wandb"
    patched = ("wandb",)
    pickled = (
        PickledType("wandb.sdk.wandb_run", "Run", reduce_run),
        PickledType("wandb.sdk.lib", "NoopRun", reduce_run),
        PickledType("wandb.sdk", "Summary", reduce_run_attribute),
        PickledType("wandb.sdk", "SummaryDisabled", reduce_run_attribute),
        PickledType("wandb.sdk", "Config", reduce_config),
        PickledType("lightning", "WandbLogger", reduce_logger),
        PickledType("pytorch_lightning", "WandbLogger", reduce_logger),
    )
    stateless = (
        "wandb.sdk.wandb_run.", "wandb.sdk.wandb_config.", "wandb.sdk.wandb_summary.",
        "wandb.sdk.lib.",
    )  # fmt: skip
    silencing: ClassVar[Mapping[str, str]] = {"WANDB_MODE": "disabled"}

    def capture(self, library: Any) -> TrackerRun | None:
        """Return the notebook's run; None if it has started none."""
        run = _current("run")
        return None if run is None else describe_run(run)

    def write_back(self, library: Any, left: TrackerRunUpdate) -> None:
        """Update the notebook's run to how the cell has left it, if it is still the same run."""
        run = _current("run")
        if run is None or run.id != left.id:
            return
        config = run.config
        changed = {k: v for k, v in left.config.items() if k not in config or config[k] != v}
        if changed:
            config.update(changed, allow_val_change=True)
        if left.exit_code is not None:
            run.finish(left.exit_code)

    def install(self, module: Any, rank: RankLogging) -> None:
        """Let ranks log as one process, unless the cell distributes by itself."""
        from .wandb_in_rank import WandbPatch  # imports torch

        if all(hasattr(module, name) for name in ("init", "_attach", "Run")):  # no folder wandb/
            WandbPatch(rank, module).install()
