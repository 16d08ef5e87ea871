"""Compact encoding of the states of many small objects.

A pickler with hooks takes one or two microseconds per object, and notebooks have many lists, dicts
and objects that hold numbers, strings and one another.  Their states are encoded flat: plain values
as they are, objects that came with the bundle by their index in a tuple of one, and all of it with
a pickler without hooks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .object_state import State

PLAIN_TYPES = frozenset((str, bytes, int, float, complex, bool, type(None)))
"""Types of values that are encoded as they are; a tuple is an index."""

Token = Callable[[Any], int | None]
"""Returns the index of an object that came with the bundle, and None for any other."""


class FlatStates:
    """Collects the states that can be encoded flat."""

    def __init__(self) -> None:
        """Start with no states."""
        self._keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._rows: list[tuple[Any, ...]] = []

    def add(self, index: int, state: State, token: Token) -> bool:
        """Add the state of the object with ``index``; return whether it can be encoded flat."""
        match state:
            case ("items", items):
                rest: tuple[Any, ...] = ()
            case ("pairs", pairs):
                keys, items = [key for key, _ in pairs], [value for _, value in pairs]
                rest = (self._same(keys),)
            case ("object", kind, dict() as inner, None, None):
                if hasattr(kind, "__setstate__"):  # it may depend on states restored before
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
        """Return the encoded states, which ``loads_flat`` reads, and start anew."""
        rows, self._rows = self._rows, []
        return pickle.dumps(rows, protocol=5)

    def _same(self, keys: Iterable[Any]) -> tuple[Any, ...] | None:
        """Return one tuple for all equal keys, None if a key is not a string."""
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
    """Yield objects of ``originals`` with their encoded states."""
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
