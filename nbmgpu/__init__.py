"""Run a training cell of your notebook on several GPUs, unchanged, with the same numbers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import NbmgpuError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .advisor import advise
    from .api import LaunchResult, attach, compare_runs, export, launch, log, release, run, share
    from .comparison import Comparison, compare, scale
    from .runs.run import Run
    from .runs.run_list import find_run, list_runs
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
    "compare_runs",
    "export",
    "find_run",
    "last_comparison",
    "last_run",
    "launch",
    "list_runs",
    "log",
    "picker",
    "release",
    "run",
    "scale",
    "share",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%%mgpu`` and ``%mgpu``; called by ``%load_ext nbmgpu``."""
    from .frontend.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics away again; called by ``%unload_ext nbmgpu``."""
    from .frontend.magics import unregister

    unregister(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell Jupyter's server what to load; only it ever asks."""
    from .server.app import NbmgpuServer

    return [{"module": "nbmgpu.server.app", "app": NbmgpuServer}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell ``jupyter-builder develop`` where JupyterLab's plugins lie once they are built."""
    return [{"src": "labextension", "dest": "nbmgpu"}]


_PUBLIC_NAMES = {
    ".advisor": ("advise",),
    ".api": (
        "LaunchResult",
        "attach",
        "compare_runs",
        "export",
        "launch",
        "log",
        "release",
        "run",
        "share",
    ),
    ".comparison": ("compare", "last_comparison", "scale"),
    ".kernel.executor": ("last_run",),
    ".runs.run": ("Run",),
    ".runs.run_list": ("find_run", "list_runs"),
    ".ui.picker": ("picker",),
}
"""The module of each public name, imported on first use so that ``import nbmgpu`` stays fast."""


def __getattr__(name: str) -> Any:
    for module, names in _PUBLIC_NAMES.items():
        if name in names:
            value = getattr(importlib.import_module(module, __name__), name)
            if not name.startswith("last_"):  # which is another one after each run
                globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
