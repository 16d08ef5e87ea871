"""States of many small things in one piece.

A pickler that looks at every object takes a microsecond or two for each, and lists, dicts
and objects of numbers, strings and one another are what notebooks have many of.  Theirs are
written flat: plain values as they are, objects that came with the bundle by their index, which
stands is_exclusive in a tuple, and all of it by a pickler that need not look.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .object_state import State

PLAIN_TYPES = frozenset((str, bytes, int, float, complex, bool, type(None)))
"""Types of values that are written as they are; a tuple is an index."""

Token = Callable[[Any], int | None]
"""Gives the index of an object that came with the bundle, and None for any other."""


class FlatStates:
    """Collects the states that can be written flat."""

    def __init__(self) -> None:
        """Have none."""
        self._keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._rows: list[tuple[Any, ...]] = []

    def take(self, index: int, state: State, token: Token) -> bool:
        """Take the state of the object of ``index``; return whether it could be taken."""
        match state:
            case ("items", items):
                rest: tuple[Any, ...] = ()
            case ("pairs", pairs):
                keys, items = [key for key, _ in pairs], [value for _, value in pairs]
                rest = (self._same(keys),)
            case ("object", kind, dict() as inner, None, None):
                if hasattr(kind, "__setstate__"):  # which may look at what came before it
                    return False
                keys, items = list(inner), list(inner.values())
                rest = self._same(keys), token(kind)
            case _:
                return False
        values = None if None in rest else _flat(items, token)
        if values is None:
            return False
        self._rows.append((index, values, *rest))
        return True

    def dumps(self) -> bytes:
        """Return what ``loads_flat`` reads, and begin anew."""
        rows, self._rows = self._rows, []
        return pickle.dumps(rows, protocol=5)

    def _same(self, keys: Iterable[Any]) -> tuple[Any, ...] | None:
        """Return one tuple for all equal keys, None for keys that are not strings."""
        keys = tuple(keys)
        return self._keys.setdefault(keys, keys) if {*map(type, keys)} <= {str} else None


def _flat(values: list[Any], token: Token) -> list[Any] | None:
    if {*map(type, values)} <= PLAIN_TYPES:
        return values
    flat: list[Any] = []
    for value in values:
        if type(value) in PLAIN_TYPES:
            flat.append(value)
        elif (index := token(value)) is not None:
            flat.append((index,))
        else:
            return None
    return flat


def loads_flat(data: bytes, originals: Mapping[int, Any]) -> Iterator[tuple[Any, State]]:
    """Yield objects of ``originals`` with the states that were taken of them."""
    for index, flat, *rest in pickle.loads(data):
        items = [originals[item[0]] if type(item) is tuple else item for item in flat]
        match rest:
            case []:
                state: State = "items", items
            case [keys]:
                state = "pairs", list(zip(keys, items, strict=True))
            case [keys, kind]:
                inner = dict(zip(keys, items, strict=True))
                state = "object", originals[kind], inner, None, None
        yield originals[index], state
