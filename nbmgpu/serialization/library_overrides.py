"""Functions that the notebook has put into classes and modules of libraries.

Such classes and modules travel by their names, so ranks have the library's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

NOTEBOOK = "__main__"


def overrides_in(owner: type | ModuleType) -> Iterator[str]:
    """Yield the names of what the notebook has put into a class, its bases, or a module."""
    places = owner.__mro__ if isinstance(owner, type) else (owner,)
    for place in places:
        if getattr(place, "__module__", "") != NOTEBOOK:
            values = list(vars(place).items())
            yield from (f"{place.__name__}.{name}" for name, value in values if _is_own(value))


def _is_own(value: Any) -> bool:
    """Tell whether something is a function of the notebook, or can be called as one."""
    if type(value) is FunctionType:  # isinstance() asks objects, some of which warn
        # Whatever it says of itself: it may wrap the library's.
        return value.__globals__.get("__name__") == NOTEBOOK
    return type(value).__module__ == NOTEBOOK and callable(value)
