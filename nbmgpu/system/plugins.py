"""Entry points, by which other packages add strategies, engines and panel views."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@functools.cache
def entry_points_in(group: str) -> dict[str, EntryPoint]:
    """Return the entry points in ``group`` by name.

    They are cached, because a scan reads the metadata of all installed packages.
    """
    from importlib.metadata import entry_points  # slow to import

    return {point.name: point for point in entry_points(group=group)}
