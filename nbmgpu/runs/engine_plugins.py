"""Engines by name: the built-in one, and those of other packages.

A package adds an engine by an entry point in the group ``nbmgpu.engines``.  The record of a run
names the engine that started it; every reader of the run (kernel, terminal, Jupyter server) asks
that engine whether the run is alive, and to stop it.  Engines are in a higher layer than runs, so
they are imported by name, on first use.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Protocol

from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.system.plugins import entry_points_in

if TYPE_CHECKING:
    from .run import Run

GROUP = "nbmgpu.engines"

DEFAULT_ENGINE = "local"

BUILT_IN = {
    DEFAULT_ENGINE: ("nbmgpu.engines.local.engine", "LocalEngine"),
    "kubernetes": ("nbmgpu.engines.kubernetes.engine", "KubernetesEngine"),
    "ray": ("nbmgpu.engines.ray.engine", "RayEngine"),
    "slurm": ("nbmgpu.engines.slurm.engine", "SlurmEngine"),
}
"""Not found by entry points: scanning all installed packages would slow ``%load_ext`` down."""


class RunControl(Protocol):
    """The part of an engine that every reader of a run needs, in any process."""

    def is_alive(self, run: Run) -> bool:
        """Return whether a run that has not ended may still end by itself.

        Called after the run's events have been read.  A run for which this is false is *lost*.
        """
        ...

    def stop(self, run: Run, force: bool, requested: bool) -> None:
        """Stop a run.

        Args:
            run: the run, started by any process.
            force: whether its ranks are killed at once; nothing comes back then.
            requested: whether the run's ``stop`` file says so.  That is all for an engine whose
                supervisor reads this file; it is false where the disk is full.
        """
        ...


@functools.cache
def engine_names() -> tuple[str, ...]:
    """Return the names that ``--engine`` accepts, the built-in one first."""
    return (*BUILT_IN, *sorted(entry_points_in(GROUP).keys() - BUILT_IN.keys()))


@functools.cache
def load_engine(name: str) -> Any:
    """Return this process's instance of the engine ``name``, an ``engines.base.Engine``.

    Raises:
        OptionError: no engine has that name.
    """
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name]
        return getattr(importlib.import_module(module), attribute)()
    found = entry_points_in(GROUP).get(name)
    if found is None:
        names = engine_names()
        near = closest_match(name, names) or DEFAULT_ENGINE
        allowed = f"Engines: {', '.join(names)}"
        raise OptionError(
            format_message(f"There is no engine {name!r}", allowed, f"--engine {near}")
        )
    return found.load()()


def run_control(name: str) -> RunControl | None:
    """Return the engine ``name`` as readers of a run need it; None if this process has none."""
    try:
        control: RunControl = load_engine(name)
    except (OptionError, ImportError, AttributeError):  # not installed here, or another version
        return None
    return control
