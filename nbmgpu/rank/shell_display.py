"""What the cell displays in a rank: rank 0 records it as events, the others discard it."""

from __future__ import annotations

import io
import json
import sys
import tokenize
from pathlib import Path
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Display

from .reporting.stdio import log_size

NO_CODE = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)


def ends_with_semicolon(cell: str) -> bool:
    """Return whether ``cell``, Python code, ends with a semicolon: no value is displayed.

    As IPython's ``DisplayHook.semicolon_at_end_of_expression``, which older versions do not have.
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(cell).readline))
    except (tokenize.TokenError, SyntaxError):  # running it says what is wrong
        return False
    code = [token.string for token in tokens if token.type not in NO_CODE]
    return bool(code) and code[-1] == ";"


class EventPublisher(DisplayPublisher):
    """Emits displays as events, with their offset in the log."""

    events: EventWriter
    log: Path

    def publish(
        self, data: Any, metadata: Any = None, *args: Any, transient: Any = None,
        update: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Emit a display, or an update of one."""
        sys.stdout.flush()
        self.events.emit(
            Display,
            offset=log_size(self.log),
            action="update" if update else "show",
            data=_as_text(data),
            metadata=metadata or {},
            display_id=(transient or {}).get("display_id", ""),
        )

    def clear_output(self, wait: bool = False) -> None:
        """Emit that the output is cleared."""
        self.events.emit(Display, offset=log_size(self.log), action="clear")


def _as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle with binary content in base64, as in a notebook file."""
    from base64 import b64encode

    def text(content: Any) -> Any:
        if isinstance(content, bytes):
            return b64encode(content).decode()
        return json.loads(json.dumps(content, default=_as_plain))

    return {kind: text(content) for kind, content in data.items()}


def _as_plain(number: Any) -> Any:
    """Convert NumPy's numbers and arrays to Python's, for JSON."""
    if hasattr(number, "tolist"):
        return number.tolist()
    raise TypeError(f"Object of type {type(number).__name__} is not JSON serializable")


class NullPublisher(DisplayPublisher):
    """Discards displays, which in other ranks than 0 repeat rank 0's."""

    def publish(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def clear_output(self, wait: bool = False) -> None:
        """Do nothing."""


class LastValueHook(DisplayHook):
    """Keeps the value of the last line instead of printing it: the notebook displays it.

    Attributes:
        value: the last value.
        has_value: whether there is one.
        silenced: whether the cell ends with a semicolon.
    """

    value: Any = None
    has_value = False
    silenced = False

    def forget_value(self) -> None:
        """Begin a cell, which has no value yet."""
        self.value, self.has_value = None, False

    def __call__(self, result: Any = None) -> None:
        """Keep ``result``, unless it is None."""
        if result is not None and not self.silenced:
            self.value, self.has_value = result, True
            if self.exec_result is not None:
                self.exec_result.result = result
