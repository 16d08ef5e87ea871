"""The notebook's warning filters and logging configuration, for its ranks."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

from nbmgpu.system.library_files import LIBRARY_FILE


def capture() -> dict[str, Any]:
    """Return the configuration of this process, as far as another process can apply it.

    Warning filters: those that ignore warnings of Python's own categories.  An "error" filter
    would also hit what libraries do in a rank for the sake of the run.  Handlers: those that write
    to the process's own streams or append to a file, as ``logging.basicConfig()`` makes them.
    Loggers with filters are left out: without these they would say more, as that of sentry does.
    """
    root = logging.getLogger()
    loggers = [each for each in [root, *root.manager.loggerDict.values()]
               if isinstance(each, logging.Logger) and not each.filters]  # fmt: skip
    return {
        "ignored": [
            (_text(message), category, _text(module), line)
            for action, message, category, module, line in warnings.filters
            if action == "ignore" and category.__module__ == "builtins"
        ],
        "levels": {each.name: each.level for each in loggers if each.level or each is root},
        "isolated": [each.name for each in loggers if not each.propagate],
        "handlers": [
            (each.name, kept) for each in loggers for handler in each.handlers
            if (kept := _kept(handler)) is not None
            and (kept.file or not _is_of_library(each.name))  # which adds its own once more
        ],
    }  # fmt: skip


class _FileHandler(logging.FileHandler):
    """Calls the ``open`` of the time when it opens the file: rank 0 alone writes to it."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Handler:
    """A handler that another process can make; ``file`` is empty for one of the own streams."""

    level: int
    formatter: logging.Formatter | None
    file: str = ""
    encoding: str | None = None
    is_stdout: bool = False

    def make(self) -> logging.Handler:
        """Return a new handler; a file is opened at the first message."""
        handler: logging.Handler
        if self.file:
            handler = _FileHandler(self.file, encoding=self.encoding, delay=True)
        else:
            handler = logging.StreamHandler(sys.stdout if self.is_stdout else None)
        handler.setLevel(self.level)
        handler.setFormatter(self.formatter)
        return handler


def _is_of_library(logger: str) -> bool:
    module = sys.modules.get(logger.partition(".")[0])
    return bool(LIBRARY_FILE.search(getattr(module, "__file__", None) or ""))


def _kept(handler: logging.Handler) -> _Handler | None:
    """Return how to make ``handler``; None for one of another kind, or with filters."""
    if type(handler.formatter) not in (logging.Formatter, type(None)) or handler.filters:
        return None
    given = handler.level, handler.formatter
    if type(handler) is logging.FileHandler:
        return _Handler(*given, handler.baseFilename, handler.encoding)
    if type(handler) is logging.StreamHandler and _is_own_stream(handler.stream):
        return _Handler(*given, is_stdout=handler.stream in (sys.stdout, sys.__stdout__))
    return None


def apply(verbosity: dict[str, Any]) -> None:
    """Apply the configuration that ``capture`` returned in another process."""
    for message, category, module, line in reversed(verbosity["ignored"]):
        warnings.filterwarnings("ignore", message, category, module, line)
    for name, level in verbosity["levels"].items():
        logging.getLogger(name).setLevel(level)
    for name in verbosity["isolated"]:
        logging.getLogger(name).propagate = False
    own = {name for name, _ in verbosity["handlers"] if not logging.getLogger(name).handlers}
    for name, handler in verbosity["handlers"]:
        if name in own:
            logging.getLogger(name).addHandler(handler.make())


def _text(pattern: Any) -> str:
    """Return the pattern of a filter as text: it is compiled, except in Python's own filters."""
    return getattr(pattern, "pattern", pattern) or ""


def _is_own_stream(stream: object) -> bool:
    return stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
