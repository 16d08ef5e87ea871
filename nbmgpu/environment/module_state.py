"""What the notebook has assigned to attributes of the user's modules, such as ``config.LR``.

Ranks import these modules afresh.  Numbers, strings, and lists, dicts and objects of these are sent
to the ranks, and sent back if the cell has changed them.  A number or string that the module has
computed by a call stays as each process has it: it may be the time, a device or a port.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from nbmgpu.system.library_files import LIBRARY_FILE

from .module_constants import ModuleVariables, read_variables

ModuleState = dict[str, Any]
"""Values by the names of a module's attributes; those of classes are ``Attributes``."""

SCALARS = (type(None), bool, int, float, complex, str, bytes)
CONTAINERS = (list, tuple, set, frozenset, dict)
OBJECTS = (SimpleNamespace, Namespace)
CODE = (FunctionType, ModuleType)
MAX_ITEMS = 10_000
"""Items of one attribute up to which it is sent."""


@dataclass(frozen=True)
class Attributes:
    """The attributes of a class of the user's modules, or of an object.

    Attributes:
        kind: name of the class.
        values: by name.
    """

    kind: str
    values: dict[str, Any]


_of_libraries = {"__main__", "__mp_main__"}
"""Names of modules that are not the user's; there are thousands, which are looked at once."""


@dataclass(frozen=True)
class _FirstSeen:
    """A module when it was seen first, usually after the cell that has imported it.

    Attributes:
        module: the module.
        modified: when its file was modified, in nanoseconds; 0 if there is none.
        state: the values of its attributes.
        variables: those of its source, read when the first run needs them.
    """

    module: ModuleType
    modified: int
    state: ModuleState

    @cached_property
    def variables(self) -> ModuleVariables:
        file = str(self.module.__file__)
        linecache.checkcache(file)
        return read_variables("".join(linecache.getlines(file)))


_seen: dict[str, _FirstSeen] = {}


class _NotPlainError(ValueError):
    """A value that is not sent."""


def remember() -> None:
    """Remember the modules that are new, to know later what the notebook has changed in them."""
    for module in _own_modules():
        _first_seen(module)


def capture() -> dict[str, ModuleState]:
    """Return what ranks may have otherwise, by the name of each of the user's modules."""
    return {module.__name__: _to_send(module) for module in _own_modules()}


def snapshot(module: ModuleType) -> ModuleState:
    """Return a copy of all attributes of ``module`` with plain values."""
    return _plain_items(vars(module), module.__name__)


def changes(before: ModuleState, after: ModuleState) -> ModuleState:
    """Return what a snapshot has that an earlier one had not, or had with another value."""
    found = {}
    for name, value in after.items():
        earlier = before.get(name)
        if isinstance(value, Attributes) and isinstance(earlier, Attributes):
            if changed := changes(earlier.values, value.values):
                found[name] = Attributes(value.kind, changed)
        elif name not in before or not _are_equal(earlier, value):
            found[name] = value
    return found


def apply(states: Mapping[str, ModuleState]) -> None:
    """Assign the values of ``states`` to the attributes of those modules that are imported."""
    for name, state in states.items():
        if (module := sys.modules.get(name)) is not None:
            assign(module, state)


def values_by_path(states: Mapping[str, ModuleState]) -> dict[str, Any]:
    """Return the values of ``states`` by their paths, such as ``config.Training.rate``."""
    modules = states.items()
    return {f"{name}{path}": value for name, state in modules for path, value in _by_path(state)}


def _by_path(state: ModuleState) -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, Attributes):
            yield from ((f".{name}{path}", inner) for path, inner in _by_path(value.values))
        else:
            yield f".{name}", value


def assign(owner: Any, values: ModuleState) -> None:
    """Assign ``values`` to attributes of ``owner``; lists, dicts and objects stay the same."""
    for name, value in values.items():
        current = getattr(owner, name, None)
        if isinstance(value, Attributes):
            kind = current if isinstance(current, type) else type(current)
            if kind.__qualname__ == value.kind:
                assign(current, value.values)
        elif not _are_equal(current, value) and not _replace_items(current, value):
            with suppress(Exception):  # of frozen objects, and of setters of the user
                setattr(owner, name, value)


def _are_equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _replace_items(container: Any, items: Any) -> bool:
    """Give ``container`` the items of another one of its type; False if it cannot change."""
    if type(container) is not type(items) or type(items) not in (list, dict, set):
        return False
    container.clear()
    container.extend(items) if type(items) is list else container.update(items)
    return True


def _own_modules() -> Iterator[ModuleType]:
    for name in sorted(sys.modules.keys() - _of_libraries):
        if (module := _own_module(name)) is not None:
            yield module


def _own_module(name: str) -> ModuleType | None:
    """Return the module if it is the user's, in a file of Python."""
    module = None if name in _of_libraries else sys.modules.get(name)
    file = vars(module).get("__file__") if type(module) is ModuleType else None
    if file and file.endswith(".py") and not LIBRARY_FILE.search(file):
        return module
    if module is not None:
        _of_libraries.add(name)
    return None


def _first_seen(module: ModuleType) -> _FirstSeen:
    known = _seen.get(module.__name__)
    if known is None or known.module is not module:
        known = _FirstSeen(module, _modified(module), snapshot(module))
        _seen[module.__name__] = known
    return known


def _modified(module: ModuleType) -> int:
    try:
        return os.stat(str(module.__file__)).st_mtime_ns
    except OSError:
        return 0


def _to_send(module: ModuleType) -> ModuleState:
    """Return the attributes of ``module`` that its ranks should have as they are here.

    What the notebook has not changed comes from the file if that was edited since.
    """
    seen, found = _first_seen(module), snapshot(module)
    stored = seen.variables.stored_by_functions
    if not stored <= found.keys():
        # Flags such as LOADED = True would go without what is loaded.
        found = {name: value for name, value in found.items() if name not in stored}
    changed = changes(seen.state, found)
    if _modified(module) != seen.modified:
        return changed
    return _merged(_in_any_process(module, found), changed)


def _in_any_process(module: ModuleType, found: ModuleState) -> ModuleState:
    """Return those of the attributes ``found`` that have the same value in another process."""
    sent = {}
    for name, value in found.items():
        if isinstance(vars(module)[name], type):
            names = (k for k, v in value.values.items() if type(v) in SCALARS)
            computed = {k for k in names if not _is_constant(f"{name}.{k}", module)}
            kept = {k: v for k, v in value.values.items() if k not in computed}
            sent[name] = Attributes(value.kind, kept)
        elif type(value) not in SCALARS or _is_constant(name, module):
            sent[name] = value
    return sent


def _merged(one: ModuleState, other: ModuleState) -> ModuleState:
    """Return the values of both; those of the ``other`` come first."""
    both = one | other
    for name, value in other.items():
        earlier = one.get(name)
        if isinstance(value, Attributes) and isinstance(earlier, Attributes):
            both[name] = Attributes(value.kind, _merged(earlier.values, value.values))
    return both


def _is_constant(name: str, module: ModuleType) -> bool:
    """Return whether ``module`` assigns a constant to ``name``, or only the notebook does it."""
    variables = _first_seen(module).variables
    if name in variables.imported and name not in variables.assigned:
        path, original = variables.imported[name]
        origin = _own_module(_absolute(path, module))
        return origin not in (None, module) and _is_constant(original, origin)
    return name in variables.constant or name not in variables.assigned


def _absolute(path: str, module: ModuleType) -> str:
    try:
        return importlib.util.resolve_name(path, module.__package__)
    except ImportError:
        return path


def _plain_items(values: Mapping[str, Any], module: str) -> ModuleState:
    """Return copies of those values that are plain and not private."""
    found = {}
    for name, value in list(values.items()):
        if not name.startswith("_") and type(value) not in CODE:
            with suppress(_NotPlainError, RuntimeError, TypeError):  # recursion, keys, threads
                found[name] = _copy(value, module, [MAX_ITEMS])
    return found


def _copy(value: Any, module: str, left: list[int]) -> Any:
    """Return a copy of a plain value; ``left`` has the number of items that it may still have.

    Raises:
        _NotPlainError: it is no plain value, or a large one.
    """
    left[0] -= 1
    kind = type(value)
    if left[0] < 0:
        raise _NotPlainError
    if kind in SCALARS:
        return value
    if kind is dict:
        return {_copy(k, module, left): _copy(v, module, left) for k, v in value.items()}
    if kind in CONTAINERS:
        return kind([_copy(item, module, left) for item in value])
    if isinstance(value, type) and value.__module__ == module:
        return Attributes(value.__qualname__, _plain_items(vars(value), module))
    values = getattr(value, "__dict__", None)
    is_own = kind in OBJECTS or all(base.__module__ == module for base in kind.__mro__[:-1])
    if is_own and values is not None:
        return Attributes(kind.__qualname__, {k: _copy(v, module, left) for k, v in values.items()})
    raise _NotPlainError
