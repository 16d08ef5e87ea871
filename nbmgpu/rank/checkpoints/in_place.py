"""Makes live objects equal to those of a checkpoint, in place where something may refer to them."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nbmgpu.strategies.sharding.full_tensor_view import FullTensorView

from .references import is_reference


class InPlaceUpdate:
    """Updates live objects; what shares an object in the checkpoint shares it afterwards."""

    def __init__(self) -> None:
        """Know no objects yet."""
        self._updated: dict[int, Any] = {}
        self._kept: list[Any] = []  # keeps ids unique

    def __call__(self, live: Any, saved: Any) -> Any:
        """Return ``live`` with the content of ``saved``, or ``saved`` if that cannot be."""
        if live is saved or is_reference(saved):
            return saved
        if id(saved) in self._updated:
            return self._updated[id(saved)]
        self._kept.append(saved)
        if type(live) is type(saved) is tuple and len(live) == len(saved):
            items = tuple(self(*pair) for pair in zip(live, saved, strict=True))
            return self._updated.setdefault(id(saved), items)
        update = self._updater(live, saved)
        self._updated[id(saved)] = saved if update is None else live
        if update is not None:
            update(live, saved)
        return self._updated[id(saved)]

    def _updater(self, live: Any, saved: Any) -> Callable[[Any, Any], None] | None:
        """Return what updates ``live``; None if it is of another kind or cannot change."""
        kind = type(saved)
        if isinstance(saved, torch.Tensor) and isinstance(live, FullTensorView):
            return _copy_tensor if _are_alike(live, saved) else None
        if type(live) is not kind:
            return None
        if isinstance(saved, torch.Tensor):
            return _copy_tensor if _are_alike(live, saved) and live.is_leaf else None
        if isinstance(saved, np.ndarray):
            is_writable = live.flags.writeable and not live.dtype.hasobject
            return np.copyto if _are_alike(live, saved) and is_writable else None
        updaters = {
            list: self._items, deque: self._items, dict: self._pairs, OrderedDict: self._pairs,
            defaultdict: self._pairs, Counter: self._pairs, set: _set_items, bytearray: _bytes,
            random.Random: _python_generator, np.random.Generator: _generator,
        }  # fmt: skip
        if kind in updaters:
            return updaters[kind]
        if kind.__module__ == "__main__" and isinstance(getattr(live, "__dict__", None), dict):
            return self._attributes
        return None

    def _items(self, live: Any, saved: Any) -> None:
        before = list(live)
        items = [self(*pair) for pair in zip(before, saved, strict=False)]
        items += list(saved)[len(items) :]
        live.clear()
        live.extend(items)

    def _pairs(self, live: dict[Any, Any], saved: dict[Any, Any]) -> None:
        pairs = {key: self(live.get(key), value) for key, value in saved.items()}
        live.clear()
        live.update(pairs)

    def _attributes(self, live: Any, saved: Any) -> None:
        self._pairs(live.__dict__, saved.__dict__)


def _are_alike(live: Any, saved: Any) -> bool:
    return bool(live.shape == saved.shape and live.dtype == saved.dtype)


def _copy_tensor(live: torch.Tensor, saved: torch.Tensor) -> None:
    with torch.no_grad():
        live.copy_(saved)


def _set_items(live: set[Any], saved: set[Any]) -> None:
    live.clear()
    live.update(saved)


def _bytes(live: bytearray, saved: bytearray) -> None:
    live[:] = saved


def _python_generator(live: random.Random, saved: random.Random) -> None:
    live.setstate(saved.getstate())


def _generator(live: np.random.Generator, saved: np.random.Generator) -> None:
    live.bit_generator.state = saved.bit_generator.state
