"""Joins the parts that ranks hold of the last batch, so that a name has the batch of the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def join(parts: Sequence[Any]) -> Any:
    """Return the batch whose samples ``parts`` hold, in order.

    Tensors, arrays and lists of plain values are joined along their samples, tuples and
    dictionaries item by item.  What is no column, such as a number, must be the same in all parts.

    Raises:
        ValueError, RuntimeError: the parts do not fit together.
    """
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise ValueError("parts of different types")
    if hasattr(first, "detach"):
        import torch

        return torch.cat([part.to(first.device) for part in parts]) if first.dim() else first
    if isinstance(first, np.ndarray):
        return np.concatenate(parts) if first.ndim else first
    if type(first) is dict:
        return {key: join([part[key] for part in parts]) for key in first}
    if isinstance(first, list | tuple):
        return _join_sequences(parts)
    if isinstance(first, str | int | float | bool | None) and all(p == first for p in parts):
        return first
    raise ValueError(f"parts of type {type(first).__name__}")


def _join_sequences(parts: Sequence[Any]) -> Any:
    """Join a column of plain values as a whole, and a list of columns one by one."""
    first = parts[0]
    if all(isinstance(value, str | bytes | int | float) for part in parts for value in part):
        values = [value for part in parts for value in part]
    else:
        values = [join(columns) for columns in zip(*parts, strict=True)]
    return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)


def join_names(
    names: Sequence[str], own: Mapping[str, Any], parts: Mapping[int, Mapping[str, Any] | None]
) -> dict[str, Any]:
    """Return the whole value of each of ``names``; names that cannot be joined are left out.

    Args:
        names: they hold rank 0's part of the last batch.
        own: the values of rank 0.
        parts: those of the other indices along ``dp``, by index; None where one was not sent.
    """
    others = [part for _, part in sorted(parts.items()) if part is not None]
    if len(others) < len(parts):
        return {}
    joined = {}
    for name in names:
        try:
            joined[name] = join([own[name], *(part[name] for part in others)])
        except (ValueError, RuntimeError, KeyError):
            continue
    return joined
