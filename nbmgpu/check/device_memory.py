"""Watches the memory that this process has on its devices."""

from __future__ import annotations

import threading

from nbmgpu.environment.accelerator import memory_allocated

INTERVAL = 0.005
"""Seconds between two readings."""


class LeastMemory:
    """Reads the memory in a thread while a ``with`` block runs.

    Attributes:
        before: bytes of tensors at its beginning.
        seen: the fewest of them since then.
    """

    def __init__(self) -> None:
        """Read the memory once."""
        self.before = self.seen = memory_allocated() or 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> LeastMemory:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self.seen = min(self.seen, memory_allocated() or 0)
