"""A value as the leaves of its containers and of objects in them, for a copy with other leaves."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

PLAIN = bool | int | float | complex | str | bytes | torch.dtype | torch.device | type | None
"""Types of leaves besides tensors."""

MAX_LEAVES = 10_000
"""Leaves that a container may have."""

MAX_DEPTH = 4
"""Objects within objects whose attributes are leaves, as in the caches of Transformers' models."""


@dataclass(frozen=True)
class ValueTree:
    """A value whose leaves are tensors and plain values.

    Attributes:
        items: the leaves, and the attributes of objects between them.
    """

    items: tuple[Any, ...]
    _spec: TreeSpec
    _object: Any = None

    @classmethod
    def of(cls, value: Any) -> ValueTree:
        """Return the tree of ``value``.

        Raises:
            TypeError: something in it is neither a leaf nor an object that can be copied, or has
                too many leaves.
        """
        return cls._of(value, MAX_DEPTH)

    @classmethod
    def _of(cls, value: Any, depth: int, of_object: Any = None) -> ValueTree:
        if _has_many(value):
            raise TypeError("too many leaves")
        leaves, spec = tree_flatten(value)
        return cls(tuple(cls._item(leaf, depth) for leaf in leaves), spec, of_object)

    @classmethod
    def _item(cls, leaf: Any, depth: int) -> Any:
        if isinstance(leaf, torch.Tensor | PLAIN):
            return leaf
        if not depth or callable(leaf) or not hasattr(leaf, "__dict__"):
            raise TypeError(f"no leaf: {type(leaf).__name__}")
        return cls._of(vars(leaf), depth - 1, leaf)

    @property
    def leaves(self) -> Iterator[Any]:
        """The leaves, in order."""
        for item in self.items:
            if isinstance(item, ValueTree):
                yield from item.leaves
            else:
                yield item

    def with_leaves(self, leaves: Iterable[Any]) -> Any:
        """Return a copy of the value with these ``leaves``."""
        left = iter(leaves)
        items = [
            item.with_leaves(left) if isinstance(item, ValueTree) else next(left)
            for item in self.items
        ]
        value = tree_unflatten(items, self._spec)
        if self._object is None:
            return value
        made = copy.copy(self._object)
        vars(made).update(value)
        return made


def _has_many(value: Any) -> bool:
    """Return whether lists and dictionaries have too many leaves: flattening them takes long."""
    count, left = 0, [value]
    while left and count <= MAX_LEAVES:
        item = left.pop()
        if isinstance(item, dict):
            item = list(item.values())
        if isinstance(item, list | tuple):
            if len(item) > MAX_LEAVES:
                return True
            left.extend(item)
        count += 1
    return bool(left)


def leaves_of(value: Any) -> list[Any] | None:
    """Return the leaves of ``value``; None if something in it is none."""
    try:
        return list(ValueTree.of(value).leaves)
    except (TypeError, RecursionError):
        return None
