"""A rank's share of a global batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """This rank's share of the current global batch.

    ``empty`` means that the rank runs a stand-in that counts nothing.
    """

    samples: int
    whole: int
    empty: bool = False

    @property
    def is_part(self) -> bool:
        """Whether other ranks have samples of the batch, too."""
        return self.samples < self.whole

    def is_even(self, world_size: int) -> bool:
        """Tell whether all of ``world_size`` ranks have as many samples."""
        return self.whole % world_size == 0

    @property
    def weight(self) -> float:
        """The part of the global batch, 0 to 1; 1 on every rank that has all of it."""
        return 0.0 if self.empty else self.samples / self.whole


Outside = tuple[Share | None, object]
"""The share at some moment, and the loader of which it is one."""
