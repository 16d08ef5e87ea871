"""What the first run needs, imported while the kernel has nothing to do.

On the kernel's own loop, a module at a time, and not in a thread: a thread that imports numpy
makes a cell's ``import numpy.linalg`` fail, for each of the two sees the package half made.
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
"""In this order each is a short wait, a tenth of a second, for a cell that comes in between."""

REST = 0.02
"""Seconds for the loop between two of them, and before the first: a reply goes out then."""


_begun = False


def load() -> None:
    """Begin to import, once; where no loop runs, a later call will, or the first run needs it all.

    An extension that IPython's configuration names is loaded before the kernel has its loop,
    and in a terminal none runs between two lines.
    """
    global _begun
    if not _begun:
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            loop.call_later(REST, _load, loop, MODULES)
            _begun = True


def _load(loop: asyncio.AbstractEventLoop, modules: Sequence[str]) -> None:
    first, *rest = modules
    with suppress(Exception):  # who uses it first is told why
        importlib.import_module(first)
    if rest:
        loop.call_later(REST, _load, loop, rest)
