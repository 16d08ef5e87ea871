"""wandb: ranks attach to the notebook's run, as several processes can write to one."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from .base import PickledType, RankLogging, Tracker
from .wandb_in_rank import WandbPatch
from .wandb_run import TrackerRun, TrackerRunUpdate, current, describe_run, name_of, started_in_rank

FINISHED_RUN_ATTRIBUTES = (
    "_settings",
    "_config",
    "_start_time",
    "_step",
    "_starting_step",
    "_init_pid",
)
"""Attributes from which a run reports its name and id."""


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
        run = current("run")
        return None if run is None else describe_run(run)

    def write_back(self, library: Any, left: TrackerRunUpdate) -> None:
        """Update the notebook's run to how the cell has left it, if it is still the same run."""
        run = current("run")
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
        if all(hasattr(module, name) for name in ("init", "_attach", "Run")):  # no folder wandb/
            WandbPatch(rank, module).install()
