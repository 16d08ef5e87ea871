"""Python's and NumPy's random numbers while samples are loaded: from a stream of the rank's own.

A dataset draws for the samples of its rank (augmentation).  Did it draw from what the cell draws
from, ranks would come apart: a coin tossed in the loop would fall differently on each of them, and
files shuffled between two epochs would have another order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import numpy as np

Generator = tuple[Callable[[], Any], Callable[[Any], None]]

GENERATORS: dict[str, Generator] = {
    "python": (random.getstate, random.setstate),
    "numpy": (np.random.get_state, np.random.set_state),
}
"""How the state of each is read and set."""


class HostStream:
    """The states of generators that are not in place: the rank's own, while nothing is loaded.

    ``drawn`` are those that samples were seen to draw from, ``drew_last`` says whether they did when
    they were watched last.  To exchange a state takes longer than a small step: the others' stay.
    """

    def __init__(self, seed: int) -> None:
        """Begin at ``seed``."""
        self.drawn: Set[str] = frozenset()
        self.drew_last = False
        self._in_place: Set[str] = frozenset()
        self._kept: dict[str, Any] = {
            "python": random.Random(seed).getstate(),
            "numpy": np.random.RandomState(seed % 2**32).get_state(),
        }

    @contextmanager
    def loading(self, watched: bool) -> Iterator[None]:
        """Let samples draw from it for a moment; see which generators, where they are watched."""
        before = self._kept.copy()
        kinds = (GENERATORS.keys() if watched else self.drawn) - self._in_place
        self._exchange(kinds)
        self._in_place |= kinds
        try:
            yield
        finally:
            self._in_place -= kinds
            self._exchange(kinds)
            if watched:
                drawn = {kind for kind in kinds if _differ(before[kind], self._kept[kind])}
                self.drawn, self.drew_last = self.drawn | drawn, bool(drawn)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Put the notebook's states in place for a moment."""
        kinds, self._in_place = self._in_place, frozenset()
        self._exchange(kinds)
        try:
            yield
        finally:
            self._exchange(kinds)
            self._in_place = kinds

    def _exchange(self, kinds: Set[str]) -> None:
        for kind in kinds:
            get, put = GENERATORS[kind]
            now = get()
            put(self._kept[kind])
            self._kept[kind] = now


def _differ(a: Any, b: Any) -> bool:
    """Compare two states of one generator, of which NumPy's has an array in it."""
    return any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))
