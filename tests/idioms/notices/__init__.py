"""Cells that are given a notice, and cells that are given none.

``TOPICS`` has the topic, the cell and the cells before it; ``NONE`` the cell and those before it.
"""

from __future__ import annotations

from . import batches, losses, none, training

TOPICS: dict[str, tuple[str, str, str]] = training.CELLS | losses.CELLS | batches.CELLS
NONE: dict[str, tuple[str, str]] = none.CELLS
