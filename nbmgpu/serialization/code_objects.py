"""Code objects keep the names of their files, by which the lines of a cell are found."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import cloudpickle

CodeReduction = tuple[Callable[..., types.CodeType], tuple[Any, ...]]

_reduce: Callable[[types.CodeType], CodeReduction]
_reduce = cloudpickle.Pickler.dispatch_table[types.CodeType]


def dispatch_table() -> dict[type, Any]:
    """Return cloudpickle's reducers, with ``reduce_code`` among them.

    A plain dict: lookups in cloudpickle's ChainMap run in Python for every object.
    """
    return {**cloudpickle.Pickler.dispatch_table, types.CodeType: reduce_code}


def reduce_code(code: types.CodeType) -> CodeReduction:
    """Reduce ``code`` with the name of its file, which cloudpickle leaves out since 3.1.3."""
    return _restore, (*_reduce(code), code.co_filename)


def _restore(make: Callable[..., types.CodeType], args: Any, filename: str) -> types.CodeType:
    return make(*args).replace(co_filename=filename)
