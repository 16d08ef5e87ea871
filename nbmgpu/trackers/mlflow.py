"""MLflow: the active runs of the notebook are those of the cell, and rank 0 alone writes.

A run of MLflow belongs to no process: it is an id in a store.  So a rank only needs the tracking
URI, the experiment and the stack of active runs.  All of MLflow's functions and clients reach the
store by two functions; on ranks that log nothing, these return stores that only read.
"""

from __future__ import annotations

import functools
import pickle
import sys
from dataclasses import dataclass
from typing import Any

from nbmgpu.patches import PatchStack

from .base import RankLogging, Tracker
from .mlflow_stores import RankStores

FLUENT = "mlflow.tracking.fluent"
"""The module of the functions that log to the active run."""

GET = "_get_store_with_resolved_uri"
"""The method by which all of MLflow gets a store."""


@dataclass(frozen=True)
class MlflowState:
    """What MLflow logs to in one process.

    Attributes:
        tracking_uri: of the store.
        registry_uri: of the model registry, None if it is the store's.
        experiment: the id of the active experiment, None for the default.
        run_ids: of the active runs; the last one is logged to, the others contain it.
        runs: those runs, pickled, as reading them needs MLflow.
        last_run: the id of the run that has ended last, None if none has.
    """

    tracking_uri: str
    registry_uri: str | None = None
    experiment: str | None = None
    run_ids: tuple[str, ...] = ()
    runs: tuple[bytes, ...] = ()
    last_run: str | None = None


def current_state(mlflow: Any) -> MlflowState:
    """Return what MLflow logs to in this process."""
    fluent = sys.modules[FLUENT]
    stack = fluent._active_run_stack.get()
    registry = sys.modules["mlflow.tracking._model_registry.utils"]
    return MlflowState(
        mlflow.get_tracking_uri(),
        registry._registry_uri,
        fluent._active_experiment_id,
        tuple(run.info.run_id for run in stack),
        tuple(map(pickle.dumps, stack)),
        fluent._last_active_run_id.get(),
    )


def enter(mlflow: Any, state: MlflowState) -> None:
    """Let MLflow log to ``state`` in this process; runs that stay active stay the same objects."""
    fluent: Any = sys.modules[FLUENT]
    if mlflow.get_tracking_uri() != state.tracking_uri:
        mlflow.set_tracking_uri(state.tracking_uri)
    if state.registry_uri is not None:
        mlflow.set_registry_uri(state.registry_uri)
    fluent._active_experiment_id = state.experiment
    stack = fluent._active_run_stack.get()
    active = {run.info.run_id: run for run in stack}
    sent = zip(state.run_ids, state.runs, strict=True)
    stack[:] = [active.get(run_id) or pickle.loads(run) for run_id, run in sent]
    fluent._last_active_run_id.set(state.last_run)


class Mlflow(Tracker):
    """MLflow, whose module-level functions log to the active run."""

    library = "mlflow"
    patched = ("mlflow",)

    def capture(self, library: Any) -> MlflowState | None:
        """Return what the notebook logs to; None if it has only imported MLflow."""
        return current_state(library) if FLUENT in sys.modules else None

    def write_back(self, library: Any, left: MlflowState) -> None:
        """Let the notebook log to what the cell has left: runs that it ended are not active."""
        if FLUENT in sys.modules:
            enter(library, left)

    def install(self, module: Any, rank: RankLogging) -> None:
        """Let ranks log as one process, to the runs that are active in the notebook."""
        if FLUENT not in sys.modules:  # a folder mlflow/ of the user
            return
        stores = RankStores(rank)
        patches = PatchStack()
        service = "mlflow.tracking._tracking_service"
        patches.wrap(f"{service}.registry.TrackingStoreRegistry.{GET}", stores.tracking)
        patches.wrap(
            f"mlflow.tracking._model_registry.registry.ModelRegistryStoreRegistry.{GET}",
            stores.model_registry,
        )
        artifacts = f"{service}.client.TrackingServiceClient._get_artifact_repo"
        patches.wrap(artifacts, stores.artifacts)
        rank.once_received(functools.partial(self._enter, module, rank))
        rank.at_exit.append(stores.close)

        def leaving() -> MlflowState | None:
            return None if rank.silent else current_state(module)

        rank.leaving[self.library] = leaving

    def _enter(self, module: Any, rank: RankLogging) -> None:
        state = rank.begun(self.library)
        if state is not None:
            enter(module, state)
