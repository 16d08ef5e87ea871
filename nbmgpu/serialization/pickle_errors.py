"""Explains pickling errors: the variable, the path inside it, the reason and a suggestion."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nbmgpu.errors import SerializationError, format_message

from .notebook_types import is_by_value
from .pickler import BundlePickler

SUGGESTIONS = {
    "generator": "make it inside the cell, or pass a list instead",
    "async_generator": "make it inside the cell, or pass a list instead",
    "coroutine": "await it before the cell, or inside it",
    "_BaseDataLoaderIter": "pass the loader and call iter() inside the cell",
    "_IOBase": "open the file inside the cell",
    "lock": "make it inside the cell; ranks are processes and cannot share a lock",
    "RLock": "make it inside the cell; ranks are processes and cannot share a lock",
    "Condition": "make it inside the cell; ranks are processes and cannot share a lock",
    "Event": "make it inside the cell; ranks are processes and cannot share an event",
    "Semaphore": "make it inside the cell; ranks are processes and cannot share a lock",
    "Thread": "start it inside the cell",
    "Executor": "start it inside the cell",
    "Pool": "start it inside the cell",
    "Queue": "make it inside the cell; ranks are processes and share no queue",
    "SimpleQueue": "make it inside the cell; ranks are processes and share no queue",
    "socket": "connect inside the cell",
    "Connection": "connect inside the cell",
    "Cursor": "connect inside the cell",
    "SummaryWriter": "make it inside the cell, on rank 0 only",
    "ScriptModule": "script or trace it inside the cell",
}
"""By the name of a class or of a base class."""

COMPILED = "_torchdynamo_orig_callable"
"""Attribute of functions that ``torch.compile`` has made."""

COMPILED_SUGGESTION = "the function without torch.compile, and torch.compile(function) in the cell"
NESTED_SUGGESTION = "save it to a file and load it inside the cell, or nest it less deeply"
DEFAULT_SUGGESTION = (
    "make it inside the cell, or give its class a __getstate__ that leaves this part out"
)
MAX_DEPTH = 12
MAX_VISITS = 20_000

Probe = Callable[[Any], Exception | None]


def can_pickle(value: Any, namespace: dict[str, Any]) -> Exception | None:
    """Return None if ``value`` can be pickled, else the exception."""
    try:
        BundlePickler(namespace).dump(value)
    except Exception as error:
        return error
    return None


def explain_pickle_error(
    name: str, names: Mapping[str, Any], namespace: dict[str, Any], error: Exception
) -> SerializationError:
    """Return the error for ``name``, the first of ``names`` whose value cannot be pickled."""
    value = names[name]
    following = [*names][[*names].index(name) + 1 :]
    others = [f"`{n}`" for n in following if can_pickle(names[n], namespace) is not None]
    path, unpicklable = find_unpicklable(
        name, value, functools.partial(can_pickle, namespace=namespace)
    )
    error = can_pickle(unpicklable, namespace) or error
    kind = f"{type(unpicklable).__module__}.{type(unpicklable).__qualname__}".removeprefix(
        "builtins."
    )
    where = f"`{name}`" if path == name else f"`{name}`, at `{path}`"
    neither = f"; nor can {', '.join(others)}" if others else ""
    otherwise = NESTED_SUGGESTION if "recursion" in str(error) else DEFAULT_SUGGESTION
    return SerializationError(
        format_message(
            f"The cell reads {where}, which cannot be sent to the ranks{neither}",
            f"Type: {kind}. Reason: {reason_of(error)}",
            suggestion_for(unpicklable) or otherwise,
        )
    )


def reason_of(error: Exception) -> str:
    """Return the message of an exception, or its type if the message is empty."""
    text, *values = error.args or ("",)
    is_template = isinstance(text, str) and "{}" in text and values  # as torch's iterators have it
    message = text.format(*values) if is_template else str(error)
    return message.rstrip(".") or type(error).__name__


def suggestion_for(unpicklable: Any) -> str | None:
    """Return the suggestion for an object that belongs to its process, if its type is known."""
    if isinstance(unpicklable, types.FunctionType) and COMPILED in vars(unpicklable):
        return COMPILED_SUGGESTION
    kinds = (kind for kind in type(unpicklable).__mro__ if kind.__module__ != "__main__")
    return next(
        (SUGGESTIONS[kind.__name__] for kind in kinds if kind.__name__ in SUGGESTIONS), None
    )


def find_unpicklable(
    path: str, value: Any, probe: Probe, is_whole: Callable[[Any], bool] = lambda value: False
) -> tuple[str, Any]:
    """Return the innermost part that fails to pickle by itself, and the path to it.

    Args:
        path: the name of ``value``.
        value: what fails.
        probe: returns why a value cannot be pickled, or None.
        is_whole: tells whether the parts of a value are of no interest.
    """
    seen: set[int] = set()
    for _ in range(MAX_DEPTH):
        seen.add(id(value))
        if suggestion_for(value) or is_whole(value):
            break  # its parts are implementation details
        for part, child in named_parts(path, value):
            if id(child) not in seen and probe(child) is not None:
                path, value = part, child
                break
        else:
            break
    return path, value


def path_to(target: Any, names: Mapping[str, Any]) -> str:
    """Return the path by which ``target`` is reached from ``names``, or its type if not found."""
    seen: set[int] = set()
    ahead = collections.deque((name, value) for name, value in names.items())
    while ahead and len(seen) < MAX_VISITS:
        path, value = ahead.popleft()
        if value is target:
            return path
        if id(value) not in seen and not isinstance(
            value, str | bytes | int | float | types.ModuleType
        ):
            seen.add(id(value))
            ahead.extend(named_parts(path, value))
    return f"a {type(target).__qualname__}"


def named_parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of a value: items, attributes, closure variables and globals."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{_shown(key)}]", item
    elif isinstance(value, list | tuple | collections.deque):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, set | frozenset):
        for item in value:
            yield f"{path}{{{_shown(item)}}}", item
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield from named_parts(f"{path}.args", value.args)
        yield from named_parts(f"{path}.keywords", value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(path, value)
    elif isinstance(value, type):
        for key, item in vars(value).items():
            if not key.startswith("__") or isinstance(item, types.FunctionType):
                yield f"{path}.{key}", item
    else:
        yield from _parts_of_object(path, value)


def _shown(key: Any) -> str:
    """Return the ``repr`` of a key; a user-defined one may raise."""
    try:
        return repr(key)
    except Exception:
        return f"a {type(key).__qualname__}"


def _parts_of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for free, cell in closure:
        try:
            yield f"{path}:{free}", cell.cell_contents
        except ValueError:
            pass  # an empty cell
    for used in function.__code__.co_names:
        if used in function.__globals__:
            yield f"{path}:{used}", function.__globals__[used]


def _parts_of_object(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", {})
    for registry in ("_modules", "_parameters", "_buffers"):  # of an nn.Module: as they are written
        members = attributes.get(registry)
        for key, item in members.items() if isinstance(members, dict) else ():
            yield f"{path}.{key}", item
    for key, item in attributes.items():
        yield f"{path}.{key}", item
    for key in getattr(type(value), "__slots__", ()):
        if isinstance(key, str) and hasattr(value, key):
            yield f"{path}.{key}", getattr(value, key)
    if is_by_value(type(value)):
        yield from named_parts(path, type(value))
