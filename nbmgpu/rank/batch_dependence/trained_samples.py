"""Counts which samples of the observed batches have been trained on."""

from __future__ import annotations

from .tags import CrossSample, Tag


class TrainedSamples:
    """Compares the backward passes with the observed batches.

    Attributes:
        shard_size: samples in the rank's largest shard.
        all_tracked: whether the samples in every loss are known.
    """

    def __init__(self) -> None:
        """Start without a batch."""
        self.shard_size = 0
        self.all_tracked = True
        self._batches = 0
        self._backward_passes = 0
        self._partial_passes = 0
        self._trained: frozenset[int] = frozenset()

    def add_batch(self, samples: int) -> None:
        """Count a batch, of which the rank's shard has ``samples``."""
        self.shard_size = max(self.shard_size, samples)
        self._batches += 1

    def add_backward(self, tag: Tag | None) -> None:
        """Count a backward pass from a loss with ``tag``."""
        self._backward_passes += 1
        self.all_tracked &= tag is not None and not isinstance(tag, CrossSample)
        if tag is not None:
            self._trained |= tag.sources
            self._partial_passes += 0 < len(tag.sources) < self.shard_size

    @property
    def any(self) -> bool:
        """Whether there has been a backward pass."""
        return self._backward_passes > 0

    @property
    def done(self) -> bool:
        """Whether all batches have been trained on, or a loss is not tracked."""
        return not self.all_tracked or self._backward_passes >= self._batches

    @property
    def is_subset(self) -> bool:
        """Whether batches were trained on, but not all of their samples."""
        return self.all_tracked and 0 < len(self._trained) < self.shard_size

    @property
    def in_pieces(self) -> bool:
        """Whether there were several backward passes, each for a part of the samples."""
        return self.all_tracked and 1 < self._partial_passes == self._backward_passes
