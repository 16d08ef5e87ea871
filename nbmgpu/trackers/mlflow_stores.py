"""The stores of MLflow in a rank: rank 0 writes, and others only read."""

from __future__ import annotations

import functools
import importlib
import time
import traceback
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .repeated_points import RepeatedPoints

if TYPE_CHECKING:
    from .base import RankLogging

MAKING = ("create_", "finalize_", "start_", "update_", "register_")
"""How the names of a store's methods begin that write and return what they have made."""

WRITING = (
    "log_", "set_", "delete_", "restore_", "rename_", "record_", "add_", "remove_", "upsert_",
    "link_", "unlink_", "archive_", "end_", "flush_", "shut_down_", "transition_",
)  # fmt: skip
"""The same of those that return nothing of interest."""


class RankStores:
    """The stores that MLflow gets on this rank instead of its own."""

    def __init__(self, rank: RankLogging) -> None:
        """Give stores by ``rank``, whose ``silent`` is known when the first store is asked for."""
        self._rank = rank
        self._shared: dict[tuple[Any, ...], SharedStore] = {}

    def tracking(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that returns the store of runs and metrics."""

        @functools.wraps(get)
        def get_store(*args: Any, **kwargs: Any) -> Any:
            if self._rank.silent:
                return SilentStore(functools.partial(get, *args, **kwargs), self._rank)
            key = (*args, *kwargs.values())
            if key not in self._shared:
                opened = OpenedAtFirstUse(functools.partial(get, *args, **kwargs))
                points = PointStore(opened, self._rank)
                self._shared[key] = SharedStore(opened, self._rank, points)
            return self._shared[key]

        return get_store

    def model_registry(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that returns the store of registered models."""

        @functools.wraps(get)
        def get_store(*args: Any, **kwargs: Any) -> Any:
            opened = OpenedAtFirstUse(functools.partial(get, *args, **kwargs))
            if self._rank.silent:
                return SilentStore(opened, self._rank)
            return SharedStore(opened, self._rank, None)

        return get_store

    def artifacts(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that returns where the files of a run are."""

        @functools.wraps(get)
        def get_artifact_repo(*args: Any, **kwargs: Any) -> Any:
            if self._rank.silent:
                return SilentStore(functools.partial(get, *args, **kwargs), self._rank)
            return get(*args, **kwargs)

        return get_artifact_repo

    def close(self, exit_code: int) -> None:
        """Write what is held back, and what MLflow writes in the background."""
        for store in self._shared.values():
            try:
                store.close()
            except Exception:
                traceback.print_exc()


class OpenedAtFirstUse:
    """Returns a store: to open one may create a database, or connect to it."""

    def __init__(self, get: Callable[[], Any]) -> None:
        """Open the store by ``get``."""
        self._get = get
        self.opened: Any = None

    def __call__(self) -> Any:
        """Return the store."""
        if self.opened is None:
            self.opened = self._get()
        return self.opened


class SilentStore:
    """A store of which a rank that logs nothing can only read."""

    def __init__(self, get: Callable[[], Any], rank: RankLogging) -> None:
        """Read from the store that ``get`` returns; most cells never read."""
        self._get = get
        self._rank = rank

    def __getattr__(self, name: str) -> Any:
        """Return a method of the store, or one in its place that writes nothing."""
        if name.startswith(MAKING):
            return functools.partial(self._await, name)
        if name.startswith(WRITING):
            return _no_operations if name.endswith("_async") else _nothing
        return getattr(self._get(), name)

    def _await(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what rank 0's call returns."""
        made = self._rank.rank_0s(_key(name, args, kwargs), _nothing, None)
        if isinstance(made, Exception):
            raise made
        if made is None and name == "create_run":
            return _imaginary_run(*args, **kwargs)
        return "0" if made is None and name == "create_experiment" else made


class SharedStore:
    """Rank 0's store: what its methods make is known to the other ranks."""

    def __init__(
        self, store: OpenedAtFirstUse, rank: RankLogging, points: PointStore | None
    ) -> None:
        """Call ``store``, whose points go by way of ``points``."""
        self._store = store
        self._rank = rank
        self._points = points

    def __getattr__(self, name: str) -> Any:
        """Return an attribute or a method of the store."""
        if self._points is not None:
            if name in ("log_metric", "log_batch"):
                return getattr(self._points, name)
            self._points.write()  # in the order of the calls; and what is read is there
        method = getattr(self._store(), name)
        if name.startswith(MAKING) and self._rank.shards_data:
            return functools.partial(self._tell, name, method)
        return method

    def _tell(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method, and send what it returns or raises to the other ranks."""
        key = _key(name, args, kwargs)
        try:
            made = method(*args, **kwargs)
        except Exception as error:
            failure = RuntimeError(f"on rank 0: {error}")
            self._rank.rank_0s(key, lambda: failure, failure)
            raise
        return self._rank.rank_0s(key, lambda: made, None)

    def close(self) -> None:
        """Write all that is to be written."""
        if self._points is not None:
            self._points.write()
        if self._store.opened is not None and hasattr(self._store.opened, "flush_async_logging"):
            self._store.opened.flush_async_logging()


class PointStore:
    """Rank 0's way of logging metrics: each point once, also in a cell that starts again.

    As long as the cell may start again, points are held back: a database cannot be restored.
    """

    def __init__(self, store: OpenedAtFirstUse, rank: RankLogging) -> None:
        """Log to ``store``."""
        self._store = store
        self._rank = rank
        self._held: list[tuple[Any, ...]] = []  # names of methods, and arguments
        self._repeated: dict[tuple[str, str], RepeatedPoints] = {}

    def log_metric(self, run_id: str, metric: Any) -> None:
        """Log a point, unless the run has it already."""
        if not self._is_repeated(run_id, metric):
            self._do("log_metric", run_id, metric)

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        """Log points, parameters and tags; errors of the latter two appear at once."""
        new = [metric for metric in metrics if not self._is_repeated(run_id, metric)]
        if params or tags:
            self.write()
            self._store().log_batch(run_id, new, params, tags)
        elif new:
            self._do("log_batch", run_id, new, params, tags)

    def write(self) -> None:
        """Write what is held back."""
        held, self._held = self._held, []
        for method, *args in held:
            getattr(self._store(), method)(*args)

    def _do(self, *call: Any) -> None:
        self._held.append(call)
        if not self._rank.may_restart():
            self.write()

    def _is_repeated(self, run_id: str, metric: Any) -> bool:
        """Return whether the run that the cell resumes has logged a point."""
        since = self._rank.resumed_from
        if since is None:
            return False
        key = run_id, metric.key
        if key not in self._repeated:
            load = functools.partial(self._points, run_id, metric.key, since)
            self._repeated[key] = RepeatedPoints(load, self._rank)
        return self._repeated[key].has(metric.step)

    def _points(self, run_id: str, name: str, since: float) -> tuple[list[int], list[int]]:
        """Return the steps of a metric's points from before and after a time."""
        history = self._store().get_metric_history(run_id, name)
        before = [point.step for point in history if point.timestamp <= since * 1000]
        return before, [point.step for point in history if point.timestamp > since * 1000]


def _key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the name of a call: a rank that finds rank 0's experiment does not create it."""
    named = kwargs.get("name", args[0] if args else "")
    detail = f"/{named}" if name == "create_experiment" else ""
    return f"mlflow/{name}{detail}"


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def _no_operations(*args: Any, **kwargs: Any) -> Any:
    """Return that there is nothing to wait for."""
    operations: Any = importlib.import_module("mlflow.utils.async_logging.run_operations")
    return operations.RunOperations([])


def _imaginary_run(
    experiment_id: str, user_id: str, start_time: int, tags: Any, run_name: str | None
) -> Any:
    """Return a run that is in no store, for cells that log nothing."""
    from mlflow.entities import LifecycleStage, Run, RunData, RunInfo, RunStatus

    info = RunInfo(
        run_id=uuid.uuid4().hex,
        experiment_id=experiment_id,
        user_id=user_id,
        status=RunStatus.to_string(RunStatus.RUNNING),
        start_time=start_time or int(time.time() * 1000),
        end_time=None,
        lifecycle_stage=LifecycleStage.ACTIVE,
        artifact_uri="",
        run_name=run_name,
    )
    return Run(info, RunData(tags=tags))
