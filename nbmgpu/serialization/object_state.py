"""The state of an object: all that makes another object like it, without making one.

``get_state`` takes it in the rank; ``set_state`` in ``nbmgpu.serialization.state_setters`` gives it to
the notebook's own object.  A state is a tuple, whose first word says what the others are:

=============  ============================================================
``items``      of a list, set or deque
``pairs``      of a dict
``bytes``      of a bytearray
``array``      a view of an array, by which its memory comes along
``part``       an inner object, named so that its own state comes along
``class``      changed attributes, names of those that are gone, and the bases, as ``part``
``function``   attributes, defaults, and the cells of its closure
``cell``       the content of such a cell, or nothing
``tensor``     data, whether it requires gradients, gradient, attributes
``object``     its type, and what ``__reduce_ex__`` says of it
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

from .memmap_arrays import is_mapped_file
from .reducers import cell_content, custom_reduce, is_by_value

State = tuple[Any, ...]

VALUE_TYPES = (str, bytes, int, float, complex, bool, type(None), tuple, frozenset, range, slice)
"""Types that are pickled again and never named by a token: an equal copy does as well, and a tuple
that came may hold changed objects now."""

STATELESS_TYPES = (enum.Enum, np.dtype, types.ModuleType, types.BuiltinFunctionType)
STATELESS_MODULES = (
    "pyarrow.", "datasets.table.", "datetime.", "pathlib.", "re.", "logging.", "uuid.",
    "pandas._libs.internals.", "wandb.sdk.wandb_run.", "wandb.sdk.wandb_config.",
    "wandb.sdk.wandb_summary.", "wandb.sdk.lib.",
)  # fmt: skip
"""Types that have no state to change, or none that is the cell's."""

HEAP_TYPE = 1 << 9
"""The flag of types that are made by ``class`` (Include/object.h: Py_TPFLAGS_HEAPTYPE)."""

MISSING = object()
"""Stands for an attribute that is not there."""


def is_stateless(obj: Any) -> bool:
    """Tell whether ``obj`` is the same whatever a cell does."""
    if isinstance(obj, np.ndarray):
        return is_mapped_file(obj)
    if isinstance(obj, type | types.FunctionType):
        return not is_by_value(obj)
    module = f"{type(obj).__module__}."
    return isinstance(obj, STATELESS_TYPES) or module.startswith(STATELESS_MODULES)


def state_is_dict(kind: type) -> bool:
    """Tell whether the state of an object of ``kind``, to which nothing is reduced_custom, is its dict.

    As of most classes in notebooks, which are written in Python and have no say in it.
    """
    silent = ("__reduce_ex__", "__reduce__", "__getstate__", "__getattribute__")
    return (
        all(getattr(kind, name, None) is getattr(object, name, None) for name in silent)
        and not hasattr(kind, "__getnewargs__")
        and not hasattr(kind, "__getnewargs_ex__")
        and not hasattr(kind, "__setstate__")
        and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
        and kind.__dictoffset__ != 0 != kind.__weakrefoffset__
        and kind.__basicsize__ == _PlainObject.__basicsize__  # what is made in C may keep more
        and not f"{kind.__module__}.".startswith(STATELESS_MODULES)
    )


class _PlainObject:
    """As large as an object is that has a dict and can be referred to, and nothing else."""


def get_state(obj: Any, before: dict[str, Any] | None = None) -> State | None:
    """Return what ``set_state`` needs to make another object like ``obj``.

    Args:
        obj: any object.
        before: of a class, its attributes as they came.

    Returns:
        The state, or None when ``obj`` can only be made anew.
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
    """Tell whether a tensor is more than a lazy module's promise of one."""
    from torch.nn.parameter import is_lazy

    return not is_lazy(tensor)


def _class_changes(kind: type, before: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes that may have changed, and the names of those that are gone."""
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
    """Tell whether a function has more than its code: attributes, variables, lists as defaults."""
    kept = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        kept += [value for value in cell_content(cell) if not isinstance(value, type)]
    return bool(function.__dict__) or any(not isinstance(value, VALUE_TYPES) for value in kept)


def _is_internal(name: str, value: Any) -> bool:
    """Tell whether a class attribute is Python's own bookkeeping."""
    if isinstance(value, types.FunctionType):
        return False
    return (name.startswith("_") and name.endswith("_")) or name.startswith(("__", "_abc_"))


def _function_state(function: types.FunctionType) -> State:
    defaults = function.__defaults__, function.__kwdefaults__
    # The cells are named so that their own states, the variables, come along.
    return "function", dict(function.__dict__), defaults, function.__closure__


def object_state(obj: Any) -> State | None:
    """Return the state of an object as its own way to be pickled has it."""
    try:
        reduced = custom_reduce(obj) or obj.__reduce_ex__(4)
    except Exception:
        return None  # not picklable; whoever pickles it will say why
    if not isinstance(reduced, tuple):
        return None
    if _is_unnamed_c_type(type(obj)):
        return None  # an iterator, say: a new one does as well, and this one takes no state
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
    """Tell whether ``kind`` is made in C, and nobody can name it."""
    made_here = kind.__flags__ & HEAP_TYPE
    return (
        not made_here and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind
    )


def drop_unpicklable(
    state: State, fails: Callable[[Any], Exception | None]
) -> tuple[State | None, dict[str, Exception]]:
    """Return ``state`` without the named_parts for which ``fails`` gives a reason, and the reasons.

    Reasons are kept under the part as it is written behind its object, as ``.lock``.
    The state is None when it cannot do without such a part.
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
