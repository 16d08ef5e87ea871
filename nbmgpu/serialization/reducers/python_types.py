"""Reducers for types of Python's standard library."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
import types
import weakref
from typing import Any

from nbmgpu.serialization.notebook_types import is_by_value


def reduce_exception(error: BaseException) -> Any:
    """Rebuild an exception whose class defines ``__init__`` without calling it."""
    kind = type(error)
    own: Any = kind.__init__
    if kind.__reduce__ is BaseException.__reduce__ and isinstance(own, types.FunctionType):
        return (
            _rebuild_exception,
            (kind, error.args),
            dict(error.__dict__),
        )  # without calling __init__(*args)
    return None


def _rebuild_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


def reduce_module(module: types.ModuleType) -> Any:
    """Reduce a module of a class of its own, such as ``torch.backends.cudnn``, to its name."""
    name = module.__name__
    return (importlib.import_module, (name,)) if sys.modules.get(name) is module else None


def cell_content(cell: types.CellType) -> tuple[Any, ...]:
    """Return the content of a closure cell as a tuple, which is empty if the cell is empty."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def reduce_cell(cell: types.CellType) -> Any:
    """Reduce a closure cell to its content."""
    return types.CellType, (), cell_content(cell), None, None, _fill_cell


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        (cell.cell_contents,) = content


CACHED_FUNCTION_ATTRIBUTES = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"}
"""Attributes that ``functools.lru_cache`` sets on a function."""


def reduce_cached(function: Any) -> Any:
    """Pickle the wrapped function by value; by default a cached function is pickled by name."""
    if not is_by_value(function.__wrapped__):
        return None
    given = function.cache_parameters()
    own = {k: v for k, v in vars(function).items() if k not in CACHED_FUNCTION_ATTRIBUTES}
    return _cached, (function.__wrapped__, given["maxsize"], given["typed"]), own or None


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def reduce_cached_property(cached: Any) -> Any:
    """Reduce a cached property to its function and name."""
    return _cached_property, (cached.func, cached.attrname)  # has a lock before Python 3.12


def _cached_property(function: Any, name: str | None) -> Any:
    cached: Any = functools.cached_property(function)
    cached.attrname = name
    return cached


def reduce_stream(stream: Any) -> Any:
    """Reduce ``sys.stdout`` and ``sys.stderr`` to their names."""
    names = [name for name in ("stdout", "stderr") if getattr(sys, name) is stream]
    return (_stream, (names[0],)) if names else None


def _stream(name: str) -> Any:
    return getattr(sys, name)


def reduce_file(file: Any) -> Any:
    """Reduce a file that is closed to its name and mode; raise PicklingError for an open one."""
    if not file.closed:
        raise pickle.PicklingError("an open file belongs to the process that has opened it")
    return _closed_file, (file.name, file.mode)


def _closed_file(name: Any, mode: str) -> Any:
    with open(os.devnull, mode.replace("x", "w")) as file:
        binary: Any = getattr(file, "buffer", file)
        getattr(binary, "raw", binary).name = name
    return file


def reduce_reference(reference: Any) -> Any:
    """Reduce a weak reference to its referent."""
    return _make_reference, (reference(),)


def _make_reference(referent: Any) -> Any:
    """Create a weak reference to ``referent``, or a dead one if it is None."""
    return weakref.ref(_DeadReferent() if referent is None else referent)


class _DeadReferent:
    """Stands for the referent of a dead weak reference."""


def reduce_shared_state(obj: Any) -> Any:
    """Reduce an object whose class shares one ``__dict__`` among all instances."""
    if not _shares_its_state(obj):
        return None
    return _shared_state_instance, (type(obj),), dict(obj.__reduce_ex__(4)[2])


def _shares_its_state(obj: Any) -> bool:
    """Return whether all instances share one ``__dict__`` (the Borg pattern), as in accelerate."""
    shared = getattr(type(obj), "_shared_state", None)
    return shared is not None and getattr(obj, "__dict__", None) is shared


def _shared_state_instance(kind: Any) -> Any:
    """Create an instance that uses the state shared by its class."""
    instance = kind.__new__(kind)
    instance.__dict__ = kind._shared_state
    return instance


def is_stream(kind: type) -> bool:
    """Return whether ``kind`` is the type of this process's standard streams."""
    return kind is type(sys.stdout) or kind is type(sys.stderr)
