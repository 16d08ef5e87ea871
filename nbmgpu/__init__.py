"""Run a training cell of your notebook on several GPUs, unchanged, with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .api import LaunchResult, attach, launch, log, run
from .errors import NbmgpuError
from .run import Run, find_run, list_runs

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .advisor import advise
    from .comparison import Comparison, compare, scale
    from .ui.picker import picker

    last_comparison: Comparison | None
    last_run: Run | None

__all__ = [
    "LaunchResult",
    "NbmgpuError",
    "Run",
    "__version__",
    "advise",
    "attach",
    "compare",
    "find_run",
    "last_comparison",
    "last_run",
    "launch",
    "list_runs",
    "log",
    "picker",
    "run",
    "scale",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%%mgpu`` and ``%mgpu``; called by ``%load_ext nbmgpu``."""
    from .magic import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics away again; called by ``%unload_ext nbmgpu``."""
    from .magic import unregister

    unregister(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell Jupyter's server what to load; only it ever asks."""
    from .server.app import NbmgpuServer

    return [{"module": "nbmgpu.server.app", "app": NbmgpuServer}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell ``jupyter-builder develop`` where JupyterLab's plugins lie once they are built."""
    return [{"src": "labextension", "dest": "nbmgpu"}]


def __getattr__(name: str) -> Any:
    if name == "last_run":
        from . import api

        return api.last_run
    if name in ("compare", "last_comparison", "scale"):
        from . import comparison

        return getattr(comparison, name)
    if name == "advise":
        from .advisor import advise

        return advise
    if name == "picker":
        from .ui.picker import picker

        return picker
    raise AttributeError(f"module 'nbmgpu' has no attribute {name!r}")
