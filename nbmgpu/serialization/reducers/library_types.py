"""Reducers for wandb, Lightning and accelerate."""

from __future__ import annotations

import copyreg
import sys
from typing import Any

from nbmgpu.environment import tracker_run

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
    over = state.get("_is_finished") or any(run is begun for begun in tracker_run.started_in_rank)
    disabled = type(run).__name__ == "NoopRun"
    if tracker_run.name_of(run) or not (over or disabled):
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
    name = tracker_run.name_of(obj)
    return (getattr, (sys.modules["wandb"], name)) if name else None


def reduce_config(config: Any) -> Any:
    """Reduce a wandb config to its values, or to its name if it is that of the current run."""
    if name := tracker_run.name_of(config):
        return getattr, (sys.modules["wandb"], name)
    return _config, (type(config), dict(config))


def _config(kind: Any, values: dict[str, Any]) -> Any:
    config = kind()
    config.update(values)
    return config


def reduce_logger(logger: Any) -> Any:
    """Omit the run of a logger; the process's own run is used.

    The default reduction starts a run in order to pickle it.
    """
    state = {**vars(logger), "_experiment": None, "_attach_id": None}
    return copyreg.__newobj__, (type(logger),), state  # type: ignore[attr-defined]


def reduce_conversion(conversion: Any) -> Any:
    """Reduce accelerate's float32 conversion, which refuses to be pickled."""
    return type(conversion), (conversion.model_forward,)  # the default raises


def reduce_collector(collector: Any) -> Any:
    """Reduce the variable that transformers' hooks read: it is the library's, in every process.

    A model has these hooks after it has returned hidden states or attentions.
    """
    return _collector, ()


def _collector() -> Any:
    from transformers.utils import output_capturing

    return output_capturing._active_collector
