"""Objects that ranks hold between two cells: the next bundle refers to them by a key.

Kernel and ranks number the bundles of ranks that are held.  A key is the number of the bundle that
brought an object, and its memo index there.  In the tables of later bundles it is a memo index like
others, so that results are restored into the notebook's own objects also from there.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .object_state import VALUE_TYPES

NUMBER_SHIFT = 40
"""Bits of a key below the number of its bundle; memo indices are smaller than that."""

STAYS = "it stays in the ranks"
"""Why a value does not come back that ranks hold."""

CODE_TYPES = type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType
CONTAINERS = list, tuple, set, frozenset, collections.deque


@dataclass(frozen=True)
class HeldObjects:
    """What ranks hold that get the next bundle.

    Attributes:
        number: of the last bundle that they have loaded, from 1.
        objects: the notebook's objects by key.
        names: names that only ranks have.
    """

    number: int
    objects: Mapping[int, Any] = field(repr=False)
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class StayingObjects:
    """What a rank does not send back, as the next cell goes on with it.

    Attributes:
        ids: of objects, among them those of ``roots`` that the notebook does not know.
        kinds: types of objects that only all ranks together could send.
        roots: the modules and optimizers that are trained.
    """

    ids: frozenset[int] = frozenset()
    kinds: tuple[type, ...] = ()
    roots: tuple[Any, ...] = ()

    def __contains__(self, obj: object) -> bool:
        """Return whether ``obj`` stays."""
        return id(obj) in self.ids or isinstance(obj, self.kinds)

    def __bool__(self) -> bool:
        """Return whether anything may stay."""
        return bool(self.ids or self.kinds)


NOTHING_STAYS = StayingObjects()


def by_key(objects: Mapping[int, Any], number: int) -> dict[int, Any]:
    """Return ``objects`` by key instead of by memo index of bundle ``number``."""
    return {
        index if index >> NUMBER_SHIFT else number << NUMBER_SHIFT | index: obj
        for index, obj in objects.items()
    }


def reachable(roots: Iterable[Any], known: Collection[int]) -> dict[int, Any]:
    """Return the objects, by ``id``, that are reachable from ``roots`` through known objects.

    Values such as strings and tuples are sent anew, and so are classes and functions, of which a
    process has one.

    Args:
        roots: modules and optimizers.
        known: ids of objects that came with a bundle.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    pending = [(root, True) for root in roots]
    while pending:
        obj, is_root = pending.pop()
        if id(obj) in seen or not (is_root or id(obj) in known or type(obj) is tuple):
            continue
        seen.add(id(obj))
        if id(obj) in known and not isinstance(obj, (*VALUE_TYPES, *CODE_TYPES)):
            found[id(obj)] = obj
        pending += [(child, False) for child in _children(obj)]
    return found


def _children(obj: Any) -> Iterator[Any]:
    """Yield what ``obj`` consists of; a sharded tensor or state must not be gathered for that."""
    if isinstance(obj, CODE_TYPES):
        return
    if isinstance(obj, dict):
        yield from dict.keys(obj)
        yield from dict.values(obj)
    for kind in CONTAINERS:
        if isinstance(obj, kind):
            iterate: Callable[[Any], Iterator[Any]] = kind.__iter__
            yield from iterate(obj)
    attributes = getattr(obj, "__dict__", None)
    if isinstance(attributes, dict):
        yield from attributes.values()
