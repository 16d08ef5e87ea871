"""Detects draws from random number generators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from .generators import state_of, torch_states


class DrawDetector:
    """Tells which generators have been drawn from since the detector was created."""

    def __init__(self, own: Sequence[Any] = (), host: bool = True) -> None:
        """Record the current states.

        Args:
            own: generators that the code itself has created.
            host: whether to check Python's and NumPy's global generators.
        """
        self._own, self._checks_host = own, host
        self._torch, self._host = torch_states(), self._host_states()

    @property
    def torch_drew(self) -> bool:
        """Whether torch has drawn, on the CPU or the GPU."""
        return self._torch != torch_states()

    @property
    def host_drew(self) -> bool:
        """Whether Python's or NumPy's global generator has drawn, or one of the code's own."""
        return self._host != self._host_states()

    def _host_states(self) -> tuple[Any, ...]:
        if not self._checks_host:
            return tuple(state_of(generator) for generator in self._own)
        name, keys, position, *_ = np.random.get_state()
        own = [state_of(generator) for generator in self._own]
        return random.getstate(), name, np.asarray(keys).tobytes(), position, own
