"""Python's and NumPy's random numbers: the notebook's, but while samples are loaded.

A dataset draws for the samples of its rank (augmentation).  Did it draw from what the cell draws
from, ranks would go apart: a coin tossed in the loop would fall otherwise on each of them, and
files shuffled between two epochs would have another order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class HostStream:
    """The state of Python's and NumPy's generators that is not in place."""

    def __init__(self, seed: int) -> None:
        """Begin a stream of its own at ``seed``."""
        self._other: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
        )

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Exchange it with the state that is in place, for a moment."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        now = random.getstate(), np.random.get_state()
        python, numpy = self._other
        random.setstate(python)
        np.random.set_state(numpy)
        self._other = now
