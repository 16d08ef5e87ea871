"""What the notebook lets be said: warnings it ignores, and how its loggers are set."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any


def capture() -> dict[str, Any]:
    """Return what holds in this process, as far as another one can take it over.

    Of the filters those that ignore warnings of Python's own categories: an "error" would meet
    what libraries do in a rank for the run's sake.  Of the root logger's handlers those that
    write to the process's own streams, as ``logging.basicConfig()`` makes them.
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
    """Let this process say what the other one would."""
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
    """Return what a filter was made of: patterns are compiled, but for Python's own filters."""
    return getattr(pattern, "pattern", pattern) or ""


def _is_own_stream(stream: object) -> bool:
    return stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
