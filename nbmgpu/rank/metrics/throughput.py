"""Samples and tokens a second, as curves."""

from __future__ import annotations

import time

from nbmgpu.rank.reporting.recorder import Recorder

EVERY = 0.5
"""Seconds between points."""


class Throughput:
    """Counts what the ranks take together, and writes twice a second how fast that is."""

    def __init__(self, recorder: Recorder) -> None:
        """Count from now on."""
        self._recorder = recorder
        self._samples, self._tokens, self._since = 0, 0.0, time.monotonic()

    def add_tokens(self, tokens: float) -> None:
        """Count the tokens of the global batch that comes next."""
        self._tokens += tokens

    def add_samples(self, samples: int, step: int) -> None:
        """Count the samples of a global batch, which is for optimizer step ``step``."""
        self._samples += samples
        now = time.monotonic()
        seconds = now - self._since
        if seconds <= EVERY:
            return
        self._recorder.metric("samples/s", step, self._samples / seconds)
        if self._tokens:
            self._recorder.metric("tokens/s", step, self._tokens / seconds)
        self._samples, self._tokens, self._since = 0, 0.0, now
