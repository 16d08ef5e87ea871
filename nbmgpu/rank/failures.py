"""An exception in a rank, as the event that carries it to the notebook."""

from __future__ import annotations

import base64
import traceback

import cloudpickle

from ..events import EventWriter, Failure

CELL_FILE_MARK = "nbmgpu-cell"


def report(
    events: EventWriter, error: BaseException, cell: str, lines: list[str] | None = None
) -> Failure:
    """Write ``error`` as an event; ``lines`` is its formatted traceback, if there is one."""
    if lines is None:
        lines = traceback.format_exception(error)
    return events.emit(
        Failure,
        type=type(error).__qualname__,
        message=str(error),
        line=cell_line(error, cell),
        traceback=lines,
        pickled=_pickle(error),
    )


def cell_line(error: BaseException, cell: str) -> int:
    """Return the line of the cell in which ``error`` passed last, 0 when it did not."""
    if isinstance(error, SyntaxError) and CELL_FILE_MARK in (error.filename or ""):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno or 0 for f in frames if CELL_FILE_MARK in f.filename]
    return lines[-1] if cell and lines else 0


def _pickle(error: BaseException) -> str:
    """Return the exception in base64, or nothing when it cannot make the journey."""
    try:
        data = cloudpickle.dumps(error.with_traceback(None))
        cloudpickle.loads(data)
    except Exception:
        return ""
    return base64.b64encode(data).decode() if len(data) < 1 << 20 else ""
