"""Classifies frames: code of the cell, other code of the notebook's author, or a library's."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from nbmgpu.runs.stacks import CELL_FILE_MARK

STDLIB_DIRECTORY = sysconfig.get_path("stdlib") + os.sep

LIBRARIES = (
    "torch", "numpy", "tqdm", "nbmgpu", "enum", "contextlib", "IPython", "accelerate",
    "lightning", "pytorch_lightning", "lightning_fabric",
)  # fmt: skip
"""Packages whose code may iterate on behalf of the user's code, such as tqdm's generators."""

NUMERIC = "numpy", "scipy", "sklearn", "pandas"
"""Packages whose functions compute with the tensors that they are given."""

INSTALLED_PATH = re.compile(r"[/\\](site-packages|dist-packages|transformers_modules)[/\\]")
"""Matches paths of third-party code."""


def frame_outside(frame: FrameType | None, packages: Collection[str]) -> FrameType | None:
    """Return ``frame`` or its nearest caller whose code does not belong to ``packages``."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in packages:
            return frame
        frame = frame.f_back
    return None


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called torch, nbmgpu or ``NUMERIC``, None if it is of a library."""
    caller = frame_outside(frame, ("torch", "nbmgpu", *NUMERIC))
    file = caller.f_code.co_filename if caller is not None else ""
    return None if is_of_library(file) else caller


def is_of_library(file: str) -> bool:
    """Return whether a source file belongs to Python or to an installed package."""
    is_python = file.startswith((STDLIB_DIRECTORY, "<frozen"))
    return INSTALLED_PATH.search(file) is not None or is_python


def is_called_by(function: Callable[..., Any], frame: FrameType | None) -> bool:
    """Return whether ``frame`` or one of its callers executes ``function``."""
    code = getattr(function, "__code__", None)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def current_cell_line(frame: FrameType | None) -> int:
    """Return the line of the cell that ``frame`` or one of its callers executes, 0 if none does."""
    while frame is not None:
        if CELL_FILE_MARK in frame.f_code.co_filename:
            return frame.f_lineno
        frame = frame.f_back
    return 0


def source_line(frame: FrameType) -> str:
    """Return the source text of the current line of ``frame``, empty if it is not available."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)
