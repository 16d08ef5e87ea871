"""How many rows the cell has saved by ``torch.save``, for the comparison with one device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from typing import Any

from nbmgpu.rank.data.batch_tensors import iter_tensors

MOST = 16
"""Tensors of a save, and of all saves of a step, whose rows are kept."""

_rows: list[int] = []


def noting_rows(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of ``torch.save`` that keeps the rows of tensors in what is saved."""

    @functools.wraps(save)
    def saving(*args: Any, **kwargs: Any) -> Any:
        saved = args[0] if args else kwargs.get("obj")
        tensors = islice(iter_tensors(saved), MOST - len(_rows))
        _rows.extend(len(tensor) for tensor in tensors if tensor.ndim)
        return save(*args, **kwargs)

    return saving


def take_saved_rows() -> list[int]:
    """Return the rows of each tensor that was saved since the last call."""
    rows = [*_rows]
    _rows.clear()
    return rows
