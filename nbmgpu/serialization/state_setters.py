"""Applies the state of an object from a rank to the notebook's own object."""

from __future__ import annotations

import collections
import copyreg
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .object_state import MISSING, State, has_data, object_state

IsNotebookMemory = Callable[[Any], bool]
"""Tells whether a tensor is in memory that the notebook had before the cell."""


def set_state(
    obj: Any, state: State, is_notebook_memory: IsNotebookMemory = lambda tensor: False
) -> None:
    """Set the state that ``get_state`` returned for the same object in a rank."""
    match state:
        case ("items", items):
            _set_items(obj, items)
        case ("pairs", pairs):
            _set_pairs(obj, pairs)
        case ("bytes", data):
            obj[:] = data
        case ("array", array):
            _set_array(obj, array)
        case ("class", changed, gone, _):
            _set_class(obj, changed, gone)
        case ("function", attributes, defaults, _):
            _set_function(obj, attributes, defaults)
        case ("cell", content):
            for value in content:
                obj.cell_contents = value
        case ("tensor", data, requires_grad, grad, extra):
            _set_tensor(obj, data, requires_grad, grad, extra, is_notebook_memory)
        case ("object", kind, inner, items, pairs):
            _set_object(obj, kind, inner, items, pairs)


def restore_order(obj: Any, state: State) -> int:
    """Return the phase in which an object's state is set: 0 first, 2 last.

    A ``__setstate__`` may read lists and dicts of its object.  A set or dict hashes its keys, whose
    hash may depend on their states.
    """
    if state[0] == "items":
        return 2 if isinstance(obj, set) else 0
    if state[0] == "pairs":
        return 0 if all(type(key) is str for key, _ in state[1]) else 2
    if state[0] == "object":
        return 2 if isinstance(obj, dict | set) else 1
    return 1


def _set_items(obj: Any, items: list[Any]) -> None:
    base: Any = next(kind for kind in (list, set, collections.deque) if isinstance(obj, kind))
    base.clear(obj)
    (base.update if base is set else base.extend)(obj, items)


def _set_pairs(obj: Any, pairs: list[tuple[Any, Any]]) -> None:
    base: Any = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
    base.clear(obj)
    for key, value in pairs:  # not ``update``, which some mappings forbid
        obj[key] = value


def _set_array(obj: Any, array: Any) -> None:
    same = obj.__array_interface__["data"] == array.__array_interface__["data"]
    if same and type(obj) is np.ndarray:
        with warnings.catch_warnings():  # of NumPy 2.5: the cell has assigned them, too
            warnings.simplefilter("ignore", DeprecationWarning)
            if obj.dtype != array.dtype:
                obj.dtype = array.dtype  # type: ignore[misc]
            if obj.shape != array.shape:
                obj.shape = array.shape
    elif obj.flags.writeable:
        obj[...] = array


def _set_class(kind: type, changed: dict[str, Any], gone: list[str]) -> None:
    for name, value in changed.items():
        if vars(kind).get(name, MISSING) is not value:
            setattr(kind, name, value)
    for name in gone:
        if name in vars(kind):
            delattr(kind, name)


def _set_function(function: Any, attributes: dict[str, Any], defaults: Any) -> None:
    function.__dict__.clear()
    function.__dict__.update(attributes)
    function.__defaults__, function.__kwdefaults__ = defaults


def _set_tensor(
    obj: Any,
    data: Any,
    requires_grad: bool,
    grad: Any,
    extra: dict[str, Any],
    is_notebook_memory: IsNotebookMemory,
) -> None:
    import torch

    if not has_data(obj):
        if not has_data(data):
            return
        obj.materialize(data.shape, data.device, data.dtype)
    with torch.inference_mode(obj.is_inference()), torch._C.DisableTorchFunctionSubclass():
        _set_data(obj, data, is_notebook_memory)
    if obj.is_leaf and not obj.is_inference():
        if obj.requires_grad != requires_grad:
            obj.requires_grad_(requires_grad)
        obj.grad = None if grad is None else grad.to(obj.device)
    obj.__dict__.clear()
    obj.__dict__.update(extra)


def _set_data(obj: Any, data: Any, is_notebook_memory: IsNotebookMemory) -> None:
    import torch

    like = obj.shape == data.shape and obj.dtype == data.dtype and obj.layout == data.layout
    if like and obj.layout is torch.strided and _same_memory(obj, data):
        return
    if like and obj.device == data.device and not is_notebook_memory(data):
        # Copied in place, so that other views of this memory see it.
        obj.detach().copy_(data)
    else:  # also if the cell has assigned memory of another tensor: ``p.data = average``
        obj.data = data


def _same_memory(a: Any, b: Any) -> bool:
    same = a.device == b.device and a.stride() == b.stride()
    return bool(same and a.data_ptr() == b.data_ptr())


def _set_object(obj: Any, kind: type, state: Any, items: Any, pairs: Any) -> None:
    if type(obj) is not kind:
        obj.__class__ = kind
    if items is not None:
        _set_items(obj, items)
    if pairs is not None:
        _set_pairs(obj, pairs)
    if hasattr(kind, "__setstate__"):
        if state is not None:
            obj.__setstate__(state)
    else:
        plain, slots = state if isinstance(state, tuple) else (state, None)
        if plain:
            obj.__dict__.update(plain)
        for key, value in (slots or {}).items():
            object.__setattr__(obj, key, value)
    _drop_attributes(obj, state if type(state) is dict else _attributes(state))


def _drop_attributes(obj: Any, kept: dict[str, Any]) -> None:
    """Delete attributes that the cell has deleted: pickled ones that were not sent back."""
    slots = copyreg._slotnames(type(obj))  # type: ignore[attr-defined]
    present = getattr(obj, "__dict__", {}).keys() | {name for name in slots if hasattr(obj, name)}
    if surplus := present - kept.keys():
        state = object_state(obj)
        for key in surplus & _attributes(state and state[2]).keys():
            object.__delattr__(obj, key)


def _attributes(inner: Any) -> dict[str, Any]:
    """Return the attributes in an object's reduced state."""
    found: dict[str, Any] = {}
    for part in inner if isinstance(inner, tuple) else (inner,):
        found.update(part if isinstance(part, dict) else {})
    return found
