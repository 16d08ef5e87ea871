"""``none``: ranks with a process group; models, optimizers and loaders are not touched.

For cells that distribute the work themselves, and for plain functions.
"""

from __future__ import annotations

from typing import ClassVar

from . import profiles
from .base import Backward, Strategy, Unit
from .profile import Profile


class NoStrategy(Strategy):
    """Does not touch models, optimizers or loaders."""

    profile: ClassVar[Profile] = profiles.NONE

    def prepare(self, units: list[Unit]) -> None:
        """Do nothing."""

    def begin_backward(self, backward: Backward) -> None:
        """Do nothing."""

    def end_backward(self, backward: Backward) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""
