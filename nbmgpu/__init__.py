"""Run a training cell of your notebook on several GPUs, unchanged, with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .api import LaunchResult, attach, launch, log, run
from .errors import NbmgpuError
from .run import Run, find_run, list_runs

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    last_run: Run | None

__all__ = [
    "LaunchResult",
    "NbmgpuError",
    "Run",
    "__version__",
    "attach",
    "find_run",
    "last_run",
    "launch",
    "list_runs",
    "log",
    "run",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%%mgpu`` and ``%mgpu``; called by ``%load_ext nbmgpu``."""
    from .magic import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics away again; called by ``%unload_ext nbmgpu``."""
    from .magic import unregister

    unregister(shell)


def __getattr__(name: str) -> Any:
    if name == "last_run":
        from . import api

        return api.last_run
    raise AttributeError(f"module 'nbmgpu' has no attribute {name!r}")
