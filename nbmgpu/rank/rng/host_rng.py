"""Random streams of the rank for Python's and NumPy's generators while it loads samples.

A dataset draws random numbers for the samples of its rank (augmentation).  If it drew from the
generators that the cell uses, ranks would desync: a coin tossed in the loop would differ between
ranks, and files shuffled between two epochs would be in different orders.
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
"""The functions that get and set the state of each generator."""


class HostStream:
    """Holds the inactive states of Python's and NumPy's generators.

    Outside of loading, these are the rank's own.  Swapping a state takes longer than a small
    step, so only the generators that samples were seen to draw from are swapped.

    Attributes:
        drawn: the generators that samples were seen to draw from.
        drew_last: whether samples drew from any when they were last watched.
    """

    def __init__(self, seed: int) -> None:
        """Seed the rank's own states with ``seed``."""
        self.drawn: Set[str] = frozenset()
        self.drew_last = False
        self._active: Set[str] = frozenset()
        self._inactive_states: dict[str, Any] = {
            "python": random.Random(seed).getstate(),
            "numpy": np.random.RandomState(seed % 2**32).get_state(),
        }

    def states(self) -> tuple[Set[str], dict[str, Any]]:
        """Return the generators that samples draw from, and the rank's own states."""
        return self.drawn, self._inactive_states.copy()

    def restore(self, states: tuple[Set[str], dict[str, Any]]) -> None:
        """Set the rank's own states to ``states()``; call it outside of ``loading``."""
        self.drawn, inactive = states
        self._inactive_states = inactive.copy()

    @contextmanager
    def loading(self, watched: bool) -> Iterator[None]:
        """Activate the rank's own states while samples are loaded.

        Args:
            watched: whether to swap all generators and detect which ones are used.
        """
        before = self._inactive_states.copy()
        kinds = (GENERATORS.keys() if watched else self.drawn) - self._active
        self._swap(kinds)
        self._active |= kinds
        try:
            yield
        finally:
            self._active -= kinds
            self._swap(kinds)
            if watched:
                drawn = {k for k in kinds if _differ(before[k], self._inactive_states[k])}
                self.drawn, self.drew_last = self.drawn | drawn, bool(drawn)

    @contextmanager
    def notebook_states(self) -> Iterator[None]:
        """Activate the notebook's states for a while."""
        kinds, self._active = self._active, frozenset()
        self._swap(kinds)
        try:
            yield
        finally:
            self._swap(kinds)
            self._active = kinds

    def _swap(self, kinds: Set[str]) -> None:
        for kind in kinds:
            get_state, set_state = GENERATORS[kind]
            state = get_state()
            set_state(self._inactive_states[kind])
            self._inactive_states[kind] = state


def _differ(a: Any, b: Any) -> bool:
    """Return whether two states of one generator differ; NumPy's contains an array."""
    return any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))
