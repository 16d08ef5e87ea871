"""Sends an exception of a rank to the notebook, as an event."""

from __future__ import annotations

import base64
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from nbmgpu.errors import NbmgpuError, format_message
from nbmgpu.patches import explain_missing
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Failure
from nbmgpu.runs.stacks import CELL_FILE_MARK

BRIEF = 4000
"""Characters of a message and of a traceback that are kept where the disk is full."""

PACKAGE = Path(__file__).parents[2]

INTERNAL = AssertionError, AttributeError, KeyError, NameError
"""What errors of nbmgpu are, as a rule."""


def report(
    events: EventWriter,
    error: BaseException,
    cell: str,
    lines: list[str] | None = None,
    hint: str = "",
) -> Failure:
    """Emit ``error`` as an event.

    Args:
        events: of this rank.
        error: the exception.
        cell: the source of the cell; empty if it did not begin.
        lines: the formatted traceback, if there is one.
        hint: what the strategy says about it.
    """
    hint = hint or explain_missing(error) or _explain_internal(error)
    lines = [*(lines or traceback.format_exception(error)), *([f"\n{hint}"] if hint else [])]
    kind, line, message = type(error).__qualname__, cell_line(error, cell), _message(error)

    def emit(message: str, lines: list[str], pickled: str) -> Failure:
        return events.emit(
            Failure, type=kind, message=message, line=line, traceback=lines, pickled=pickled
        )

    try:
        return emit(message, lines, _pickle(error))
    except OSError:  # the disk is full: a short form may still fit
        return emit(message[:BRIEF], ["".join(lines)[-BRIEF:]], "")


def cell_line(error: BaseException, cell: str) -> int:
    """Return the line of the cell in the innermost frame of ``error``, 0 if there is none."""
    if isinstance(error, SyntaxError) and CELL_FILE_MARK in (error.filename or ""):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno or 0 for f in frames if CELL_FILE_MARK in f.filename]
    return lines[-1] if cell and lines else 0


def location_in_cell(error: BaseException, cell: str) -> str:
    """Return where in the cell ``error`` was raised; empty if it was not raised there."""
    line, lines = cell_line(error, cell), cell.splitlines()
    if not 0 < line <= len(lines):
        return ""
    return f"line {line} of the cell: {lines[line - 1].strip()}"


def _explain_internal(error: BaseException) -> str:
    """Return that ``error`` may be nbmgpu's and not the cell's; empty if nothing says so.

    Functions of torch that nbmgpu calls for the cell raise others, such as RuntimeError.
    """
    if not isinstance(error, INTERNAL) or isinstance(error, NbmgpuError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    path = Path(last.filename)
    if not path.is_relative_to(PACKAGE) or last.name in ("__getattr__", "__getattribute__"):
        return ""
    where = f"{path.relative_to(PACKAGE.parent)}, line {last.lineno}"
    what = f"This was raised in {where}: it may be an error of nbmgpu, not of your cell"
    allowed = "Please report it with this traceback"
    return format_message(what, allowed, "--exact never, which does less in each step")


def hide_own_frames(error: BaseException) -> None:
    """Cut the traceback of ``error`` after the last frame that is not nbmgpu's."""
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
    """Return the pickled exception in base64, or an empty string if it cannot be pickled."""
    own = {name: value for name, value in vars(error).items() if _can_be_pickled(value)}
    for form in (error, _Rebuilt(type(error), error.args, own)):
        if _can_be_pickled(form):
            data = cloudpickle.dumps(form)  # without its traceback
            return base64.b64encode(data).decode() if len(data) < 1 << 20 else ""
    return ""


def _can_be_pickled(value: object) -> bool:
    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


class _Rebuilt:
    """Unpickles to an exception whose ``__init__`` takes other arguments than ``args``."""

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
