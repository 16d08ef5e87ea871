"""A class as it stands in a module beside a notebook."""

from __future__ import annotations

from torch import Tensor


class Meter:
    """Counts samples."""

    def __init__(self) -> None:
        self.samples = 0

    def update(self, x: Tensor) -> None:
        self.samples += x.shape[0]
