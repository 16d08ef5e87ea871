"""The shard of a global batch that a rank holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchShard:
    """This rank's shard of the current global batch.

    Attributes:
        samples: number of samples in the shard.
        global_samples: number of samples in the global batch.
        is_padding: the rank has no samples of its own and runs a copy of another shard with weight
            0, so that it takes part in every collective.
    """

    samples: int
    global_samples: int
    is_padding: bool = False

    @property
    def is_partial(self) -> bool:
        """Whether other ranks hold samples of the batch, too."""
        return self.samples < self.global_samples

    def is_even(self, dp_size: int) -> bool:
        """Return whether all ``dp_size`` ranks have the same number of samples."""
        return self.global_samples % dp_size == 0

    def is_single(self, dp_size: int) -> bool:
        """Return whether none of ``dp_size`` ranks has more than one sample, and several have."""
        return 1 < self.global_samples <= dp_size

    @property
    def weight(self) -> float:
        """Fraction of the global batch, 0 to 1; 1 on every rank that holds the whole batch."""
        return 0.0 if self.is_padding else self.samples / self.global_samples


EnclosingPass = tuple[BatchShard | None, object]
"""The shard and the loader that were current when a nested pass over another loader began."""
