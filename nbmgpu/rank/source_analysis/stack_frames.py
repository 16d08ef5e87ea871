"""Whose code is running: the cell's, other code of the notebook's author, or a library's."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Collection
from types import FrameType

from nbmgpu.rank.reporting.failures import CELL_FILE_MARK

STANDARD = sysconfig.get_path("stdlib") + os.sep

LIBRARIES = (
    "torch", "numpy", "tqdm", "nbmgpu", "enum", "contextlib", "IPython", "accelerate",
    "lightning", "pytorch_lightning", "lightning_fabric",
)  # fmt: skip
"""Packages whose code, such as tqdm's generators, may iterate for the user's."""

INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|transformers_modules)[/\\]")
"""Where code lies that somebody else has written."""


def outside(frame: FrameType | None, packages: Collection[str]) -> FrameType | None:
    """Return ``frame`` or the nearest of its callers whose code is not of ``packages``."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in packages:
            return frame
        frame = frame.f_back
    return None


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame that has called torch or nbmgpu, None where that is a library's."""
    caller = outside(frame, ("torch", "nbmgpu"))
    file = caller.f_code.co_filename if caller is not None else ""
    is_librarys = file.startswith((STANDARD, "<frozen")) or INSTALLED.search(file)
    return None if is_librarys else caller


def current_cell_line(frame: FrameType | None) -> int:
    """Return the line of the cell at which ``frame`` or one of its callers is, 0 if none is."""
    while frame is not None:
        if CELL_FILE_MARK in frame.f_code.co_filename:
            return frame.f_lineno
        frame = frame.f_back
    return 0


def source_line(frame: FrameType) -> str:
    """Return the text of the line at which ``frame`` is, empty where it is not known."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)
