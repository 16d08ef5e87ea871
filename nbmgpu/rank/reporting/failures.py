"""An exception in a rank, as the event that carries it to the notebook."""

from __future__ import annotations

import base64
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from nbmgpu.runs.events import EventWriter, Failure

CELL_FILE_MARK = "nbmgpu-cell"
BRIEF = 4000
"""Characters of a message and of a traceback, where there is no room for more."""

PACKAGE = Path(__file__).parents[2]


def report(
    events: EventWriter, error: BaseException, cell: str, lines: list[str] | None = None
) -> Failure:
    """Write ``error`` as an event; ``lines`` is its formatted traceback, if there is one."""
    if lines is None:
        lines = traceback.format_exception(error)
    kind, line, message = type(error).__qualname__, cell_line(error, cell), _message(error)

    def say(message: str, lines: list[str], pickled: str) -> Failure:
        return events.emit(
            Failure, type=kind, message=message, line=line, traceback=lines, pickled=pickled
        )

    try:
        return say(message, lines, _pickle(error))
    except OSError:  # the disk is full: the least that explains it may still have room
        return say(message[:BRIEF], ["".join(lines)[-BRIEF:]], "")


def cell_line(error: BaseException, cell: str) -> int:
    """Return the line of the cell in which ``error`` passed last, 0 when it did not."""
    if isinstance(error, SyntaxError) and CELL_FILE_MARK in (error.filename or ""):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno or 0 for f in frames if CELL_FILE_MARK in f.filename]
    return lines[-1] if cell and lines else 0


def place_in_cell(error: BaseException, cell: str) -> str:
    """Return where in the cell ``error`` was raised, empty if not there."""
    line, lines = cell_line(error, cell), cell.splitlines()
    if not 0 < line <= len(lines):
        return ""
    return f"line {line} of the cell: {lines[line - 1].strip()}"


def end_before_own_frames(error: BaseException) -> None:
    """Let the traceback of ``error`` end at the last line that is not nbmgpu's."""
    at, last = error.__traceback__, None
    while at is not None:
        if not Path(at.tb_frame.f_code.co_filename).is_relative_to(PACKAGE):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(the exception cannot be printed)"


def _pickle(error: BaseException) -> str:
    """Return the exception in base64, or nothing when it cannot make the journey."""
    bare = error.with_traceback(None)
    own = {name: value for name, value in vars(error).items() if _travels(value)}
    for form in (bare, _Rebuilt(type(error), error.args, own)):
        if _travels(form):
            data = cloudpickle.dumps(form)
            return base64.b64encode(data).decode() if len(data) < 1 << 20 else ""
    return ""


def _travels(value: object) -> bool:
    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


class _Rebuilt:
    """Unpickles as an exception whose own ``__init__`` wants other arguments than ``args``."""

    def __init__(
        self, cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
    ) -> None:
        self.parts = cls, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, self.parts


def rebuild(
    cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    """Return an exception of type ``cls`` without calling its ``__init__``."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(state)
    return error
