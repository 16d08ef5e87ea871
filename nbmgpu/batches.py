"""The batch arithmetic of a run, in words."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def batch_line(values: Iterable[Any], batch: str, world_size: int) -> str:
    """Return one line on how the loaders among ``values`` are split, empty without any.

    ``batch`` is ``global`` or ``per-rank``, as in the options.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return ""
    sizes = [v.batch_size for v in values if isinstance(v, data.DataLoader) and v.batch_size]
    return "; ".join(dict.fromkeys(_line(size, batch, world_size) for size in sizes))


def _line(size: int, batch: str, world_size: int) -> str:
    if world_size == 1:
        return f"batch {size} on one rank"
    if batch == "per-rank":
        return f"global batch {size * world_size} = {world_size} ranks x {size}"
    share, longer = divmod(size, world_size)
    if not longer:
        return f"global batch {size} = {world_size} ranks x {share}"
    return f"global batch {size} on {world_size} ranks: {share} or {share + 1} each"
