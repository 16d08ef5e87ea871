"""The state of an object: everything needed to make another object equal to it in place.

``get_state`` reads it in the rank; ``set_state`` in ``nbmgpu.serialization.state_setters`` applies
it to the notebook's object.  A state is a tuple whose first item names the kind of the others:

=============  ============================================================
``items``      of a list, set or deque
``pairs``      of a dict
``bytes``      of a bytearray
``array``      a view of an array, which carries its memory
``part``       an inner object, whose own state is sent too
``class``      changed attributes, names of deleted ones, and the bases
``function``   attributes, defaults, and the cells of its closure
``cell``       the content of a closure cell, or nothing
``tensor``     data, whether it requires gradients, gradient, attributes
``object``     its type, and the parts that ``__reduce_ex__`` returns
=============  ============================================================
"""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from nbmgpu.trackers.registry import stateless_modules

from .memmap_arrays import is_mapped_file
from .notebook_types import is_by_value
from .reducers import custom_reduce
from .reducers.python_types import cell_content

State = tuple[Any, ...]

VALUE_TYPES = (str, bytes, int, float, complex, bool, type(None), tuple, frozenset, range, slice)
"""Types that are pickled again and never sent as tokens.

An equal copy is sufficient, and a tuple may contain objects that have changed.
"""

STATELESS_TYPES = (enum.Enum, np.dtype, types.ModuleType, types.BuiltinFunctionType)
STATELESS_MODULES = (
    "pyarrow.", "datasets.table.", "datetime.", "pathlib.", "re.", "logging.", "uuid.",
    "pandas._libs.internals.", *stateless_modules(),
)  # fmt: skip
"""Types without mutable state, or whose state does not belong to the cell."""

HEAP_TYPE = 1 << 9
"""Flag of types that a ``class`` statement creates (Include/object.h: Py_TPFLAGS_HEAPTYPE)."""

MISSING = object()
"""Sentinel for an attribute that does not exist."""


def is_stateless(obj: Any) -> bool:
    """Return whether a cell cannot change the state of ``obj``."""
    if isinstance(obj, np.ndarray):
        return is_mapped_file(obj)
    if isinstance(obj, type | types.FunctionType):
        return not is_by_value(obj)
    module = f"{type(obj).__module__}."
    return isinstance(obj, STATELESS_TYPES) or module.startswith(STATELESS_MODULES)


def state_is_dict(kind: type) -> bool:
    """Return whether the state of objects of ``kind``, without a reducer, is their ``__dict__``.

    This is true of most classes in notebooks, which do not customize pickling.
    """
    hooks = ("__reduce_ex__", "__reduce__", "__getstate__", "__getattribute__")
    return (
        all(getattr(kind, name, None) is getattr(object, name, None) for name in hooks)
        and not hasattr(kind, "__getnewargs__")
        and not hasattr(kind, "__getnewargs_ex__")
        and not hasattr(kind, "__setstate__")
        and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
        and kind.__dictoffset__ != 0 != kind.__weakrefoffset__
        and kind.__basicsize__ == _PlainObject.__basicsize__  # C types may have more state
        and not f"{kind.__module__}.".startswith(STATELESS_MODULES)
    )


class _PlainObject:
    """Has the size of an object with only a ``__dict__`` and a weak reference list."""


def get_state(obj: Any, before: dict[str, Any] | None = None) -> State | None:
    """Return what ``set_state`` needs to make another object equal to ``obj``.

    Args:
        obj: any object.
        before: the attributes of a class when it was loaded.

    Returns:
        The state, or None if ``obj`` can only be replaced by a new object.
    """
    if type(obj) in (list, set, collections.deque):
        return "items", list(obj)
    if type(obj) is dict:
        return "pairs", list(obj.items())
    if type(obj) is bytearray:
        return "bytes", bytes(obj)
    if isinstance(obj, np.ndarray):
        return "array", obj.view()
    if isinstance(obj, np.random.Generator):
        return "part", obj.bit_generator
    if isinstance(obj, functools._lru_cache_wrapper) and is_by_value(obj.__wrapped__):
        return "part", obj.__wrapped__
    if isinstance(obj, type):
        bases = tuple(filter(is_by_value, obj.__mro__[1:]))
        return "class", *_class_changes(obj, before or {}), bases
    if isinstance(obj, types.FunctionType):
        return _function_state(obj)
    if isinstance(obj, types.CellType):
        return "cell", cell_content(obj)
    if _is_tensor(obj):
        grad = obj.grad if obj.is_leaf else None
        data = obj.detach() if has_data(obj) else obj
        return "tensor", data, obj.requires_grad and obj.is_leaf, grad, dict(obj.__dict__)
    return object_state(obj)


def _is_tensor(obj: Any) -> bool:
    import torch

    return isinstance(obj, torch.Tensor)


def has_data(tensor: Any) -> bool:
    """Return whether a tensor has data; an uninitialized parameter of a lazy module has none."""
    from torch.nn.parameter import is_lazy

    return not is_lazy(tensor)


def _class_changes(kind: type, before: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes that may have changed, and the names of deleted ones."""
    now = {name: value for name, value in vars(kind).items() if not _is_internal(name, value)}
    changed = {
        name: value
        for name, value in now.items()
        if before.get(name, MISSING) is not value or _may_change(value)
    }
    gone = [name for name, v in before.items() if name not in now and not _is_internal(name, v)]
    return changed, gone


def _may_change(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return is_by_value(value) and _has_mutable_state(value)
    if hasattr(type(value), "__get__"):
        return is_by_value(type(value))
    return not isinstance(value, VALUE_TYPES)


def _has_mutable_state(function: types.FunctionType) -> bool:
    """Return whether a function has attributes, closure variables or mutable defaults."""
    kept = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        kept += [value for value in cell_content(cell) if not isinstance(value, type)]
    return bool(function.__dict__) or any(not isinstance(value, VALUE_TYPES) for value in kept)


def _is_internal(name: str, value: Any) -> bool:
    """Return whether a class attribute is Python's own bookkeeping."""
    if isinstance(value, types.FunctionType):
        return False
    return (name.startswith("_") and name.endswith("_")) or name.startswith(("__", "_abc_"))


def _function_state(function: types.FunctionType) -> State:
    defaults = function.__defaults__, function.__kwdefaults__
    # Naming the cells also sends their states, the variables.
    return "function", dict(function.__dict__), defaults, function.__closure__


def object_state(obj: Any) -> State | None:
    """Return the state of an object as its reduction provides it."""
    try:
        reduced = custom_reduce(obj) or obj.__reduce_ex__(4)
    except Exception:
        return None  # pickling it will raise the error
    if not isinstance(reduced, tuple):
        return None
    if _is_unnamed_c_type(type(obj)):
        return None  # such as an iterator: its state cannot be set
    function, _, state, items, pairs = (*reduced, None, None, None)[:5]
    if isinstance(obj, dict):
        pairs = list(obj.items())
    elif isinstance(obj, list | set | collections.deque):
        items = list(obj)
    whole = function.__name__ in ("__newobj__", "__newobj_ex__")
    if state is None and items is None and pairs is None and not whole:
        return None
    return "object", type(obj), state, items, pairs


def _is_unnamed_c_type(kind: type) -> bool:
    """Return whether ``kind`` is implemented in C and cannot be imported by name."""
    made_here = kind.__flags__ & HEAP_TYPE
    return (
        not made_here and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind
    )


def drop_unpicklable(
    state: State, fails: Callable[[Any], Exception | None]
) -> tuple[State | None, dict[str, Exception]]:
    """Return ``state`` without the parts that cannot be pickled, and the reasons.

    Args:
        state: as ``get_state`` returns it.
        fails: returns why a value cannot be pickled, or None.

    Returns:
        The remaining state, or None if the object needs a part that was dropped.  The reasons are
        keyed by the part as it is written after its object, such as ``.lock``.
    """
    lost: dict[str, Exception] = {}

    def kept(items: Any, form: str = ".{}") -> list[Any]:
        good = []
        for key, value in items:
            if (reason := fails(value)) is None:
                good.append((key, value))
            else:
                lost[form.format(key)] = reason
        return good

    match state:
        case ("pairs", pairs):
            state = "pairs", kept(pairs, "[{!r}]")
        case ("class", changed, *others):
            state = "class", dict(kept(changed.items())), *others
        case ("function", attributes, *others):
            state = "function", dict(kept(attributes.items())), *others
        case ("tensor", data, requires_grad, grad, extra):
            state = "tensor", data, requires_grad, grad, dict(kept(extra.items()))
        case ("object", kind, dict() as inner, items, pairs):
            pairs = pairs and kept(pairs, "[{!r}]")
            state = "object", kind, dict(kept(inner.items())), items, pairs
    return (None if fails(state) else state), lost
