"""The trackers that nbmgpu knows, and what is done with all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from .aim import Aim
from .base import NotebookTrackers, PickledType, RankLogging, Tracker
from .comet import Comet
from .mlflow import Mlflow
from .tensorboard import TensorBoard
from .wandb import Wandb

TRACKERS: tuple[Tracker, ...] = (Wandb(), TensorBoard(), Mlflow(), Comet(), Aim())


def capture(logs: bool = True) -> NotebookTrackers:
    """Return what the notebook logs to; without ``logs``, the cell logs nothing."""
    begun = {}
    for tracker in TRACKERS:
        if (library := sys.modules.get(tracker.library)) is None:
            continue
        with suppress(Exception):  # some version of it may raise anything; the launch goes on
            if (state := tracker.capture(library)) is not None:
                begun[tracker.library] = state
    return NotebookTrackers(begun, muted=not logs)


def write_back(left: dict[str, Any]) -> Iterator[tuple[str, Exception]]:
    """Let the notebook's runs be as the cell has left them; yield the errors, by library."""
    for tracker in TRACKERS:
        library = sys.modules.get(tracker.library)
        if library is not None and tracker.library in left:
            try:
                tracker.write_back(library, left[tracker.library])
            except Exception as error:
                yield tracker.library, error


def installers(rank: RankLogging) -> dict[str, Callable[[], None]]:
    """Prepare a rank; return what to call after modules have been imported, by their names."""
    for tracker in TRACKERS:
        tracker.begin(rank)
    return {
        module: partial(_install, tracker, module, rank)
        for tracker in TRACKERS
        for module in tracker.patched
    }


def _install(tracker: Tracker, module: str, rank: RankLogging) -> None:
    tracker.install(sys.modules[module], rank)


def silence() -> None:
    """Set the environment variables of a rank that logs nothing."""
    for tracker in TRACKERS:
        os.environ.update(tracker.silencing)


def pickled_types() -> tuple[PickledType, ...]:
    """Return the types that are sent in a way of their own."""
    return tuple(kind for tracker in TRACKERS for kind in tracker.pickled)


def stateless_modules() -> tuple[str, ...]:
    """Return the beginnings of names of modules whose objects are not written back."""
    return tuple(name for tracker in TRACKERS for name in tracker.stateless)
