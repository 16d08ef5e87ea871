"""``none``: ranks with a process group, and nothing touched.

For cells that bring their own distribution, and for plain functions.
"""

from __future__ import annotations

from typing import ClassVar

from .base import Backward, Strategy, Unit


class NoStrategy(Strategy):
    """Leaves models, optimizers and loaders alone."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "ranks with a process group, nothing touched: you distribute"
    shards_data: ClassVar[bool] = False

    def prepare(self, units: list[Unit]) -> None:
        """Do nothing."""

    def begin_backward(self, backward: Backward) -> None:
        """Do nothing."""

    def end_backward(self, backward: Backward) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""
