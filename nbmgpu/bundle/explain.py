"""Why something cannot be pickled: the variable, the path inside it, the reason, the way out."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from ..errors import ShippingError
from .codec import Packer

WAYS_OUT: tuple[tuple[str, str], ...] = (
    ("generator", "make it inside the cell, or ship a list instead"),
    ("coroutine", "await it before the cell, or inside it"),
    ("Iter", "ship the loader or the list and call iter() inside the cell"),
    ("TextIOWrapper", "open the file inside the cell"),
    ("Buffered", "open the file inside the cell"),
    ("lock", "make it inside the cell; ranks are processes and cannot share a lock"),
    ("LockType", "make it inside the cell; ranks are processes and cannot share a lock"),
    ("Thread", "start it inside the cell"),
    ("Queue", "make it inside the cell; ranks are processes and share no queue"),
    ("socket", "connect inside the cell"),
    ("Connection", "connect inside the cell"),
    ("Cursor", "connect inside the cell"),
    ("SummaryWriter", "make it inside the cell, on rank 0 only"),
)
MAX_DEPTH = 12


def can_pickle(value: Any, namespace: dict[str, Any]) -> Exception | None:
    """Return None when ``value`` pickles, else the exception."""
    try:
        Packer(namespace).dump(value)
    except Exception as error:
        return error
    return None


def explain(name: str, value: Any, namespace: dict[str, Any], error: Exception) -> ShippingError:
    """Return the error for ``name``, whose value failed to pickle with ``error``."""
    path, culprit, reason = _deepest(name, value, namespace, error, set(), 0)
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    where = f"`{name}`" if path == name else f"`{name}`, at `{path}`"
    return ShippingError(
        f"The cell reads {where}, which cannot be sent to the ranks.\n"
        f"Type: {kind}. Reason: {reason}.\n"
        f"Try: {_way_out(culprit)}."
    )


def _way_out(culprit: Any) -> str:
    kind = type(culprit).__qualname__
    for part, way in WAYS_OUT:
        if part in kind:
            return way
    return "make it inside the cell, or give its class a __getstate__ that leaves this part out"


def _deepest(
    path: str, value: Any, namespace: dict[str, Any], error: Exception, seen: set[int], depth: int
) -> tuple[str, Any, str]:
    """Follow the first part that fails on its own, as far down as parts can be named."""
    seen.add(id(value))
    if depth < MAX_DEPTH:
        for part, child in _parts(path, value):
            if id(child) not in seen and (inner := can_pickle(child, namespace)) is not None:
                return _deepest(part, child, namespace, inner, seen, depth + 1)
    return path, value, str(error).rstrip(".") or type(error).__name__


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of a value: items, attributes, closures and globals."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, set | frozenset):
        for item in value:
            yield f"{path}{{{item!r}}}", item
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield f"{path}:{free}", cell.cell_contents
        for used in value.__code__.co_names:
            if used in value.__globals__:
                yield f"{path}:{used}", value.__globals__[used]
    elif isinstance(value, type):
        for key, item in vars(value).items():
            if isinstance(item, types.FunctionType):
                yield f"{path}.{key}", item
    else:
        for key, item in getattr(value, "__dict__", {}).items():
            yield f"{path}.{key}", item
        for key in getattr(type(value), "__slots__", ()):
            if isinstance(key, str) and hasattr(value, key):
                yield f"{path}.{key}", getattr(value, key)
