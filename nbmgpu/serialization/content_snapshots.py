"""Snapshots of long lists, dicts and sets, by which unchanged ones are not sent back."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

MIN_LENGTH = 32
"""Shorter containers are sent faster than they are compared."""

CONTAINER_TYPES = frozenset((list, dict, set))
"""Types whose items are their whole state; subclasses are excluded."""


def snapshot_contents(objects: Mapping[int, Any]) -> dict[int, tuple[Any, ...]]:
    """Return the items of the long containers among ``objects``, by index."""
    return {
        index: tuple(_items(obj))
        for index, obj in objects.items()
        if type(obj) in CONTAINER_TYPES and len(obj) >= MIN_LENGTH
    }


def contents_unchanged(obj: Any, before: tuple[Any, ...]) -> bool:
    """Return whether ``obj`` has the identical items; the items may have changed themselves.

    Equality is not enough: ``True`` equals 1, and a list may equal another one that is not shared.
    """
    length = 2 * len(obj) if type(obj) is dict else len(obj)
    return length == len(before) and all(map(operator.is_, _items(obj), before))


def _items(obj: Any) -> Iterable[Any]:
    return chain(obj, obj.values()) if type(obj) is dict else obj
