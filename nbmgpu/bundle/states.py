"""The state of an object: all that makes another object like it, without making one.

``state_of`` takes it in the rank, ``put_state`` gives it to the notebook's own
object.  A state is a tuple whose first word says of what kind it is.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .codec import cell_content, is_by_value, is_mapped_file, mended_reduce

State = tuple[Any, ...]

VALUES = (str, bytes, int, float, complex, bool, type(None), tuple, frozenset, range, slice)
"""Equal is as good as the same, and a tuple may hold other things now."""

FROZEN = (enum.Enum, np.dtype, types.ModuleType, types.BuiltinFunctionType)
FROZEN_MODULES = (
    "pyarrow.", "datasets.table.", "datetime.", "pathlib.", "re.", "logging.", "uuid.",
)  # fmt: skip
"""Types that have no state to change, or none that is the cell's."""

ABSENT = object()
"""Stands for an attribute that is not there."""


def is_frozen(obj: Any) -> bool:
    """Tell whether ``obj`` is the same whatever a cell does."""
    if isinstance(obj, np.ndarray):
        return is_mapped_file(obj)
    if isinstance(obj, type | types.FunctionType):
        return not is_by_value(obj)
    module = f"{type(obj).__module__}."
    return isinstance(obj, FROZEN) or module.startswith(FROZEN_MODULES)


def state_of(obj: Any, before: dict[str, Any] | None = None) -> State | None:
    """Return what ``put_state`` needs to make another object like ``obj``.

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
    if isinstance(obj, type):
        return "class", *_class_changes(obj, before or {})
    if isinstance(obj, types.FunctionType):
        return _function_state(obj)
    if isinstance(obj, types.CellType):
        return "cell", cell_content(obj)
    if _is_tensor(obj):
        grad = obj.grad if obj.is_leaf else None
        data = obj.detach() if has_data(obj) else obj
        return "tensor", data, obj.requires_grad and obj.is_leaf, grad, dict(obj.__dict__)
    return _object_state(obj)


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
        if before.get(name, ABSENT) is not value or _may_change(value)
    }
    gone = [name for name, v in before.items() if name not in now and not _is_internal(name, v)]
    return changed, gone


def _may_change(value: Any) -> bool:
    return not isinstance(value, VALUES) and not hasattr(type(value), "__get__")


def _is_internal(name: str, value: Any) -> bool:
    """Tell whether a class attribute is Python's own bookkeeping."""
    if isinstance(value, types.FunctionType):
        return False
    return name.startswith("__") or (name.startswith("_") and name.endswith("_")) or "_abc" in name


def _function_state(function: types.FunctionType) -> State:
    defaults = function.__defaults__, function.__kwdefaults__
    # The cells are named so that their own states, the variables, come along.
    return "function", dict(function.__dict__), defaults, function.__closure__


def _object_state(obj: Any) -> State | None:
    try:
        reduced = mended_reduce(obj) or obj.__reduce_ex__(4)
    except Exception:
        return None  # not picklable; whoever pickles it will say why
    if not isinstance(reduced, tuple):
        return None
    function, _, state, items, pairs = (*reduced, None, None, None)[:5]
    if isinstance(obj, dict):
        pairs = list(obj.items())
    elif isinstance(obj, list | set | collections.deque):
        items = list(obj)
    whole = function.__name__ in ("__newobj__", "__newobj_ex__")
    if state is None and items is None and pairs is None and not whole:
        return None
    return "object", type(obj), state, items, pairs


def put_state(obj: Any, state: State) -> None:
    """Give ``obj`` the state that ``state_of`` took from its other self."""
    match state:
        case ("items", items):
            _put_items(obj, items)
        case ("pairs", pairs):
            _put_pairs(obj, pairs)
        case ("bytes", data):
            obj[:] = data
        case ("array", array):
            _put_array(obj, array)
        case ("class", changed, gone):
            _put_class(obj, changed, gone)
        case ("function", attributes, defaults, _):
            _put_function(obj, attributes, defaults)
        case ("cell", content):
            for value in content:
                obj.cell_contents = value
        case ("tensor", data, requires_grad, grad, extra):
            _put_tensor(obj, data, requires_grad, grad, extra)
        case ("object", kind, inner, items, pairs):
            _put_object(obj, kind, inner, items, pairs)


def put_turn(obj: Any, state: State) -> int:
    """Return when an object's turn is: 0 first, 2 last.

    A ``__setstate__`` may look into its object's lists and dicts; a set or dict
    asks its keys for hashes, which come from their states.
    """
    if state[0] == "items":
        return 2 if isinstance(obj, set) else 0
    if state[0] == "pairs":
        return 0 if all(type(key) is str for key, _ in state[1]) else 2
    if state[0] == "object":
        return 2 if isinstance(obj, dict | set) else 1
    return 1


def _put_items(obj: Any, items: list[Any]) -> None:
    base: Any = next(kind for kind in (list, set, collections.deque) if isinstance(obj, kind))
    base.clear(obj)
    (base.update if base is set else base.extend)(obj, items)


def _put_pairs(obj: Any, pairs: list[tuple[Any, Any]]) -> None:
    base: Any = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
    base.clear(obj)
    for key, value in pairs:  # not by ``update``, which some mappings forbid
        obj[key] = value


def _put_array(obj: Any, array: Any) -> None:
    same = obj.__array_interface__["data"] == array.__array_interface__["data"]
    if same and type(obj) is np.ndarray:
        if obj.shape != array.shape:
            obj.shape = array.shape
    elif obj.flags.writeable:
        obj[...] = array


def _put_class(kind: type, changed: dict[str, Any], gone: list[str]) -> None:
    for name, value in changed.items():
        if vars(kind).get(name, ABSENT) is not value:
            setattr(kind, name, value)
    for name in gone:
        if name in vars(kind):
            delattr(kind, name)


def _put_function(function: Any, attributes: dict[str, Any], defaults: Any) -> None:
    function.__dict__.clear()
    function.__dict__.update(attributes)
    function.__defaults__, function.__kwdefaults__ = defaults


def _put_tensor(obj: Any, data: Any, requires_grad: bool, grad: Any, extra: dict[str, Any]) -> None:
    import torch

    if not has_data(obj):
        if not has_data(data):
            return
        obj.materialize(data.shape, data.device, data.dtype)
    with torch.inference_mode(obj.is_inference()), torch._C.DisableTorchFunctionSubclass():
        _put_data(obj, data)
    if obj.is_leaf and not obj.is_inference():
        if obj.requires_grad != requires_grad:
            obj.requires_grad_(requires_grad)
        obj.grad = None if grad is None else grad.to(obj.device)
    obj.__dict__.clear()
    obj.__dict__.update(extra)


def _put_data(obj: Any, data: Any) -> None:
    import torch

    like = obj.shape == data.shape and obj.dtype == data.dtype and obj.layout == data.layout
    if like and obj.layout is torch.strided and _same_memory(obj, data):
        return
    if like and obj.device == data.device:
        # Written over, not replaced: other views of this memory are to see it.
        obj.detach().copy_(data)
    else:
        obj.data = data


def _same_memory(a: Any, b: Any) -> bool:
    same = a.device == b.device and a.stride() == b.stride()
    return bool(same and a.data_ptr() == b.data_ptr())


def _put_object(obj: Any, kind: type, state: Any, items: Any, pairs: Any) -> None:
    if type(obj) is not kind:
        obj.__class__ = kind
    if items is not None:
        _put_items(obj, items)
    if pairs is not None:
        _put_pairs(obj, pairs)
    if hasattr(kind, "__setstate__"):
        if state is not None:
            obj.__setstate__(state)
    else:
        plain, slots = state if isinstance(state, tuple) else (state, None)
        if plain:
            obj.__dict__.update(plain)
        for key, value in (slots or {}).items():
            object.__setattr__(obj, key, value)
    _drop_attributes(obj, _attributes(state))


def _drop_attributes(obj: Any, kept: dict[str, Any]) -> None:
    """Delete what the cell has deleted: attributes that would have travelled, but came not back."""
    slots = copyreg._slotnames(type(obj))  # type: ignore[attr-defined]
    present = {*getattr(obj, "__dict__", {}), *(name for name in slots if hasattr(obj, name))}
    if surplus := present - kept.keys():
        state = _object_state(obj)
        for key in surplus & _attributes(state and state[2]).keys():
            object.__delattr__(obj, key)


def _attributes(inner: Any) -> dict[str, Any]:
    """Return the attributes in an object's inner state, as far as it is made of attributes."""
    found: dict[str, Any] = {}
    for part in inner if isinstance(inner, tuple) else (inner,):
        found.update(part if isinstance(part, dict) else {})
    return found


def trimmed(
    state: State, fails: Callable[[Any], Exception | None]
) -> tuple[State | None, dict[str, Exception]]:
    """Return ``state`` without the parts for which ``fails`` gives a reason, and the reasons.

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
        case ("class", changed, gone):
            state = "class", dict(kept(changed.items())), gone
        case ("function", attributes, *others):
            state = "function", dict(kept(attributes.items())), *others
        case ("tensor", data, requires_grad, grad, extra):
            state = "tensor", data, requires_grad, grad, dict(kept(extra.items()))
        case ("object", kind, dict() as inner, items, pairs):
            pairs = pairs and kept(pairs, "[{!r}]")
            state = "object", kind, dict(kept(inner.items())), items, pairs
    return (None if fails(state) else state), lost
