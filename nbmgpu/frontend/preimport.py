"""Imports the modules that the first run needs while the kernel is idle.

The kernel's event loop imports one module at a time.  A thread would not do: while a thread imports
numpy, ``import numpy.linalg`` in a cell fails, as each sees a partially initialized package.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from contextlib import suppress

MODULES = (
    "numpy",
    "nbmgpu.devices.placement",
    "nbmgpu.runs.run",
    "nbmgpu.cell",
    "nbmgpu.serialization",
    "nbmgpu.report.digest",
    "nbmgpu.kernel.execution",
    "nbmgpu.frontend.dispatch",
    "ipywidgets",
    "nbmgpu.ui.panel",
)
"""In this order each import delays a cell by at most about 0.1 seconds."""

INTERVAL = 0.02
"""Seconds before each import, in which the event loop can send replies."""

_started = False


def load() -> None:
    """Start importing, once.  Without a running event loop, leave it to a later call.

    An extension in IPython's configuration is loaded before the kernel's event loop starts.  In a
    terminal no loop runs between two lines; there the first run imports the modules.
    """
    global _started
    if not _started:
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            loop.call_later(INTERVAL, _import_next, loop, MODULES)
            _started = True


def _import_next(loop: asyncio.AbstractEventLoop, modules: Sequence[str]) -> None:
    first, *rest = modules
    with suppress(Exception):  # the first use raises the error again
        importlib.import_module(first)
    if rest:
        loop.call_later(INTERVAL, _import_next, loop, rest)
