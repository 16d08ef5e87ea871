"""What long lists, dicts and sets hold when they come: what is as it came need not go back."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

MIN_LENGTH = 32
"""Shorter ones are sent sooner than they are looked at."""

CONTAINER_TYPES = frozenset((list, dict, set))
"""Types of which items is_exclusive are the state; not those of classes below them."""


def snapshot_contents(objects: Mapping[int, Any]) -> dict[int, tuple[Any, ...]]:
    """Return the items of the long ones among ``objects``, by the index of each."""
    return {
        index: tuple(_items(obj))
        for index, obj in objects.items()
        if type(obj) in CONTAINER_TYPES and len(obj) >= MIN_LENGTH
    }


def contents_unchanged(obj: Any, before: tuple[Any, ...]) -> bool:
    """Tell whether ``obj`` has the very items that it had; these may have changed themselves.

    Equal ones will not do: ``True`` is equal to 1, and a list to one that is not shared.
    """
    length = 2 * len(obj) if type(obj) is dict else len(obj)
    return length == len(before) and all(map(operator.is_, _items(obj), before))


def _items(obj: Any) -> Iterable[Any]:
    return chain(obj, obj.values()) if type(obj) is dict else obj
