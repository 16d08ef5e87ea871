"""Aim: what the cell tracks is written by the kernel when the cell is over.

A process that has a ``Run`` open holds a lock on its files (RocksDB), so no rank can write to the
notebook's run.  In a rank, a ``RecordedRun`` stands for it.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nbmgpu.patches import PatchStack

from .base import PickledType, RankLogging, Tracker

RECORDED = (
    "close",
    "track",
    "set",
    "add_tag",
    "remove_tag",
    "log_info",
    "log_warning",
    "log_error",
)
"""Methods of a run whose calls are recorded."""

WITHOUT_AUTOMATIC_LOGS: dict[str, Any] = {
    "system_tracking_interval": None, "capture_terminal_logs": False,
}  # fmt: skip
"""Arguments of a run that the notebook opens for the cell."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The name of a method, and arguments."""

_runs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The runs of this process that were sent to another one, by their hash."""

_recorded: dict[str, RecordedRun] = {}
"""In a rank, what stands for the notebook's runs, by their hash."""

_rank: RankLogging | None = None
"""This rank; None in the kernel."""


class RecordedRun:
    """Stands for a run of the notebook, in a rank: records what the cell tracks.

    Attributes:
        hash: of the run.
        repository: the folder where it is.
        calls: what the cell has tracked.
    """

    def __init__(self, run_hash: str, repository: str) -> None:
        """Stand for the run with this hash."""
        self.hash = run_hash
        self.repository = repository
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        """Return a method that records its calls."""
        if name not in RECORDED:
            raise AttributeError(
                f"aim's run.{name} is not available under %%mgpu, as the notebook has the run: "
                f"{', '.join(RECORDED)} and run[key] = value are; use {name} in another cell"
            )

        def record(*args: Any, **kwargs: Any) -> None:
            self.calls.append((name, args, kwargs))

        return record

    def __setitem__(self, key: str, value: Any) -> None:
        """Record a parameter of the run."""
        self.calls.append(("__setitem__", (key, value), {}))

    def __reduce__(self) -> tuple[Any, ...]:
        """Stand for the run of the process that reads this."""
        return _run_of, (self.hash, self.repository)


def reduce_run(run: Any) -> Any:
    """Reduce a run to its hash and the folder of its repository."""
    _runs[run.hash] = run
    return _run_of, (run.hash, run.repo.path)


def _run_of(run_hash: str, repository: str) -> Any:
    """Return this process's run, or what stands for the notebook's."""
    if run_hash in _runs:
        return _runs[run_hash]
    if _rank is not None:
        return _recorded.setdefault(run_hash, RecordedRun(run_hash, repository))
    aim: Any = importlib.import_module("aim")
    return aim.Run(  # of a rank that has ended
        run_hash=run_hash, repo=repository, **WITHOUT_AUTOMATIC_LOGS
    )


class Aim(Tracker):
    """Aim, whose runs are objects of the notebook."""

    library = "aim"
    patched = ("aim",)
    pickled = (PickledType("aim.sdk", "Run", reduce_run, True),)
    stateless = ("aim.", "nbmgpu.trackers.aim.")

    def begin(self, rank: RankLogging) -> None:
        """Record what the cell tracks."""
        global _rank
        _rank = rank
        rank.leaving[self.library] = self._leaving

    def _leaving(self) -> dict[str, list[Call]] | None:
        calls = {run.hash: run.calls for run in _recorded.values() if run.calls}
        return calls if calls and _rank is not None and not _rank.silent else None

    def install(self, module: Any, rank: RankLogging) -> None:
        """Let only rank 0 begin runs, and close them at the end."""
        if not hasattr(module, "Run"):  # a folder aim/ of the user
            return
        plain = module.Run
        opened: list[Any] = []

        def begin_run(*args: Any, **kwargs: Any) -> Any:
            if rank.silent:
                run_hash = rank.rank_0s("aim", str, "")
                return _recorded.setdefault(run_hash, RecordedRun(run_hash, ""))
            with rank.own_files():
                run = plain(*args, **kwargs)
            opened.append(run)
            rank.rank_0s("aim", lambda: str(run.hash), "")
            return run

        def close(exit_code: int) -> None:
            for run in opened:
                with suppress(Exception):
                    run.close()

        PatchStack().replace("aim.Run", begin_run)
        rank.at_exit.append(close)

    def write_back(self, library: Any, left: Mapping[str, list[Call]]) -> None:
        """Track what the cell has tracked."""
        for run_hash, calls in left.items():
            run = _runs.get(run_hash)
            for name, args, kwargs in calls if run is not None else ():
                getattr(run, name)(*args, **kwargs)
