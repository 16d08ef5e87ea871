"""Finds functions that the notebook has set on classes and modules of libraries.

Such classes and modules are pickled by name, so ranks have the library's original functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

NOTEBOOK = "__main__"


def overrides_in(owner: type | ModuleType) -> Iterator[str]:
    """Yield names of attributes that the notebook has set on a class, its bases, or a module."""
    places = owner.__mro__ if isinstance(owner, type) else (owner,)
    for place in places:
        if getattr(place, "__module__", "") != NOTEBOOK:
            values = list(vars(place).items())
            yield from (f"{place.__name__}.{name}" for name, value in values if _is_own(value))


def _is_own(value: Any) -> bool:
    """Return whether a value is a function or callable that the notebook defines."""
    if type(value) is FunctionType:  # isinstance() reads __class__, and some objects warn
        # Not __module__, which functools.wraps copies from the library's function.
        return value.__globals__.get("__name__") == NOTEBOOK
    return type(value).__module__ == NOTEBOOK and callable(value)
