"""The notebook's warning filters and logging configuration, for its ranks."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any


def capture() -> dict[str, Any]:
    """Return the configuration of this process, as far as another process can apply it.

    Warning filters: those that ignore warnings of Python's own categories.  An "error" filter
    would also hit what libraries do in a rank for the sake of the run.  Handlers: those of the
    root logger that write to the process's own streams, as ``logging.basicConfig()`` makes them.
    """
    root = logging.getLogger()
    loggers = [each for each in [*root.manager.loggerDict.values()]
               if isinstance(each, logging.Logger)]  # fmt: skip
    return {
        "ignored": [
            (_text(message), category, _text(module), line)
            for action, message, category, module, line in warnings.filters
            if action == "ignore" and category.__module__ == "builtins"
        ],
        "root": root.level,
        "levels": {each.name: each.level for each in loggers if each.level},
        "handlers": [
            (handler.level, handler.formatter)
            for handler in root.handlers
            if type(handler) is logging.StreamHandler and _is_own_stream(handler.stream)
            if type(handler.formatter) in (logging.Formatter, type(None))
        ],
    }


def apply(verbosity: dict[str, Any]) -> None:
    """Apply the configuration that ``capture`` returned in another process."""
    for message, category, module, line in reversed(verbosity["ignored"]):
        warnings.filterwarnings("ignore", message, category, module, line)
    root = logging.getLogger()
    root.setLevel(verbosity["root"])
    for name, level in verbosity["levels"].items():
        logging.getLogger(name).setLevel(level)
    if root.handlers:
        return
    for level, formatter in verbosity["handlers"]:
        handler = logging.StreamHandler()
        handler.setLevel(level)
        handler.setFormatter(formatter)
        root.addHandler(handler)


def _text(pattern: Any) -> str:
    """Return the pattern of a filter as text: it is compiled, except in Python's own filters."""
    return getattr(pattern, "pattern", pattern) or ""


def _is_own_stream(stream: object) -> bool:
    return stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
