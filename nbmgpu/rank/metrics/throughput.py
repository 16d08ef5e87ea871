"""Samples and tokens per second, as curves."""

from __future__ import annotations

import time

from nbmgpu.rank.reporting.recorder import Recorder

INTERVAL = 0.5
"""Seconds between points."""


class Throughput:
    """Counts samples and tokens of all ranks, and records their rates twice a second.

    Attributes:
        total: number of samples so far.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Start counting."""
        self._recorder = recorder
        self.begin_run()

    def begin_run(self) -> None:
        """Start counting in a cell: the time before it does not count."""
        self.total = 0
        self._samples, self._tokens, self._since = 0, 0.0, time.monotonic()

    def add_tokens(self, tokens: float) -> None:
        """Count the tokens of the next global batch."""
        self._tokens += tokens

    def add_samples(self, samples: int, step: int) -> None:
        """Count the samples of a global batch, used in optimizer step ``step``."""
        self._samples += samples
        self.total += samples
        now = time.monotonic()
        seconds = now - self._since
        if seconds <= INTERVAL:
            return
        self._recorder.metric("samples/s", step, self._samples / seconds)
        if self._tokens:
            self._recorder.metric("tokens/s", step, self._tokens / seconds)
        self._samples, self._tokens, self._since = 0, 0.0, now
