"""A traceback with real frames, made from those that a rank has saved."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from nbmgpu.rank.source_analysis.stack_frames import is_of_library
from nbmgpu.runs.post_mortem import Frame, PostMortem

HIDDEN = "__tracebackhide__"
"""A local variable of frames that ``up`` and ``down`` of IPython's debugger leave out."""


def rebuilt_traceback(saved: PostMortem, namespace: Mapping[str, Any]) -> TracebackType:
    """Return a traceback whose frames have the code positions and variables of those saved.

    A debugger shows their source, and evaluates expressions in them.  It leaves out frames of
    libraries, but the innermost.

    Args:
        saved: at least one frame.
        namespace: of the notebook, for names that the rank has not saved.
    """
    for file, text in saved.sources.items():
        # Without a time of change, ``linecache.checkcache`` keeps it.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    rank_names = next((frame.values() for frame in saved.frames if _is_cell(frame)), {})
    traceback: TracebackType | None = None
    for frame in reversed(saved.frames):
        if frame.module == "__main__":
            names = {**namespace, **rank_names}
        else:
            names = dict(vars(sys.modules[frame.module])) if frame.module in sys.modules else {}
        variables = names if _is_cell(frame) else frame.values()
        if is_hidden(frame, saved):
            variables[HIDDEN] = True
        made = _run(frame, names, variables)
        traceback = TracebackType(traceback, made.tb_frame, made.tb_lasti, frame.line)
    assert traceback is not None
    return traceback


def is_hidden(frame: Frame, saved: PostMortem) -> bool:
    """Return whether a frame is a library's, and not the innermost one."""
    return frame is not saved.frames[-1] and is_of_library(frame.file)


def _is_cell(frame: Frame) -> bool:
    return frame.function == "<module>" and frame.module == "__main__"


def _run(frame: Frame, names: dict[str, Any], variables: dict[str, Any]) -> TracebackType:
    """Run code that fails at the place of ``frame``; return its entry of the traceback."""
    code = compile("\n" * (frame.line - 1) + "raise Exception", frame.file, "exec")
    code = code.replace(co_name=frame.function)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=frame.function)
    entry: TracebackType | None = None
    try:
        exec(code, names, variables)
    except Exception as error:
        entry = error.__traceback__ and error.__traceback__.tb_next  # after this function's own
    assert entry is not None
    return entry
