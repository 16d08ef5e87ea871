"""Comet: rank 0 goes on with the notebook's experiment by its key, as an existing experiment.

An offline experiment then has an archive more, ``<key>-....zip``, which ``comet upload`` appends.
"""

from __future__ import annotations

import functools
import importlib
import traceback
import weakref
from dataclasses import dataclass
from typing import Any

from nbmgpu.patches import PatchStack

from .base import PickledType, RankLogging, Tracker

WITHOUT_AUTOMATIC_LOGS: dict[str, Any] = {
    "log_code": False,
    "log_env_details": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "auto_output_logging": False,
    "display_summary_level": 0,
}
"""Arguments of an experiment that goes on: the notebook has logged that, or goes on to."""

_experiments: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The experiments of this process that another one may know, by their key."""

_rank: RankLogging | None = None
"""This rank; None in the kernel."""


@dataclass(frozen=True)
class ExperimentState:
    """An experiment, as far as another process can go on with it.

    Attributes:
        key: of the experiment.
        offline: whether it writes to an archive.
        folder: of the archive; empty for an experiment that is online.
        step: the current step, None before the first.
        ended: whether nothing can be logged to it any more.
    """

    key: str
    offline: bool
    folder: str
    step: int | None
    ended: bool


def describe(experiment: Any) -> ExperimentState:
    """Return what another process needs to go on with ``experiment``."""
    folder = getattr(experiment, "offline_directory", None)
    return ExperimentState(
        key=experiment.get_key(),
        offline=folder is not None,
        folder=folder or "",
        step=experiment.curr_step,
        ended=bool(experiment.ended or experiment.disabled),
    )


def reduce_experiment(experiment: Any) -> Any:
    """Reduce an experiment to its key."""
    state = describe(experiment)
    _experiments[state.key] = experiment
    return experiment_of, (state,)


def experiment_of(state: ExperimentState) -> Any:
    """Return this process's experiment with a key, or go on with that of another process."""
    if state.key in _experiments:
        return _experiments[state.key]
    comet_ml: Any = importlib.import_module("comet_ml")
    if state.ended or (_rank is not None and _rank.silent):
        found: Any = comet_ml.OfflineExperiment(disabled=True)
    elif state.offline:
        found = comet_ml.ExistingOfflineExperiment(
            experiment_key=state.key, offline_directory=state.folder, **WITHOUT_AUTOMATIC_LOGS
        )
    else:
        found = comet_ml.ExistingExperiment(experiment_key=state.key, **WITHOUT_AUTOMATIC_LOGS)
    if state.step is not None and not found.disabled:
        found.set_step(state.step)
    _experiments[state.key] = found
    return found


class Comet(Tracker):
    """Comet, whose experiments are objects of the notebook."""

    library = "comet_ml"
    patched = ("comet_ml",)
    pickled = (PickledType("comet_ml", "CometExperiment", reduce_experiment, True),)
    stateless = ("comet_ml.",)

    def __init__(self) -> None:
        """Begin without an experiment."""
        self._beginning = 0  # number of experiments that are being made

    def begin(self, rank: RankLogging) -> None:
        """Go on with experiments as this rank has to."""
        global _rank
        _rank = rank

    def capture(self, library: Any) -> ExperimentState | None:
        """Return the running experiment."""
        experiment = library.get_running_experiment()
        if experiment is None:
            return None
        _experiments[experiment.get_key()] = experiment
        return describe(experiment)

    def write_back(self, library: Any, left: list[ExperimentState]) -> None:
        """Let the notebook's experiments be at the cell's step, or end them."""
        for state in left:
            experiment = _experiments.get(state.key)
            if experiment is None or experiment.ended:
                continue
            if state.step is not None:
                experiment.set_step(state.step)
            if state.ended:
                experiment.end()

    def install(self, module: Any, rank: RankLogging) -> None:
        """Let only rank 0 log, and end at the end of the cell what it has opened."""
        if not hasattr(module, "OfflineExperiment"):  # a folder comet_ml/ of the user
            return
        opened: list[Any] = []
        patches = PatchStack()

        def wrap(init: Any) -> Any:
            @functools.wraps(init)
            def begin(experiment: Any, *args: Any, **kwargs: Any) -> None:
                if rank.silent:
                    kwargs["disabled"] = True
                self._beginning += 1
                try:
                    with rank.own_files():
                        init(experiment, *args, **kwargs)
                finally:
                    self._beginning -= 1
                opened.append(experiment)

            return begin

        patches.wrap("comet_ml.OfflineExperiment.__init__", wrap)
        patches.wrap("comet_ml.Experiment.__init__", wrap)
        for name in ("get_running_experiment", "get_global_experiment"):
            patches.wrap(f"comet_ml.{name}", functools.partial(self._joining, rank))

        def leaving() -> list[ExperimentState] | None:
            return None if rank.silent else [describe(each) for each in opened]

        def end(exit_code: int) -> None:
            for experiment in opened:
                try:
                    with rank.own_files():
                        experiment.end()
                except Exception:
                    traceback.print_exc()

        rank.leaving[self.library] = leaving
        rank.at_exit.append(end)

    def _joining(self, rank: RankLogging, get: Any) -> Any:
        """Go on with the notebook's running experiment when the cell asks for it."""

        @functools.wraps(get)
        def joining() -> Any:
            running, state = get(), rank.begun(self.library)
            if running is not None or state is None or self._beginning:
                return running  # Comet asks for the running one while it begins one
            return experiment_of(state)

        return joining
