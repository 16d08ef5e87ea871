"""Joins what ranks hold of the last batch, or have computed of it, to what one device has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbmgpu.environment.headers import SampleDims


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


def join_leaves(values: Sequence[Any], dims: SampleDims) -> Any:
    """Return the value whose leaves are those of ``values``, joined along ``dims``.

    Raises:
        ValueError, RuntimeError: the values do not fit together, or a leaf without samples differs.
    """
    from .value_tree import ValueTree

    trees = [ValueTree.of(value) for value in values]
    return trees[0].with_leaves(join_columns([list(tree.leaves) for tree in trees], dims))


def join_columns(parts: Sequence[Sequence[Any]], dims: SampleDims) -> list[Any]:
    """Return the leaves of the whole value, given those of each part.

    Raises:
        ValueError, RuntimeError: the parts do not fit together, or a leaf without samples differs.
    """
    columns = zip(*parts, strict=True)
    return [_join_leaf(column, dim) for column, dim in zip(columns, dims, strict=True)]


def _join_leaf(leaves: Sequence[Any], dim: int | None) -> Any:
    import torch

    first = leaves[0]
    if dim is not None:
        return torch.cat([leaf.to(first.device) for leaf in leaves], dim)
    if isinstance(first, torch.Tensor):
        if all(torch.allclose(first, leaf.to(first), equal_nan=True) for leaf in leaves):
            return first
    elif all(leaf == first for leaf in leaves):
        return first
    raise ValueError("leaves without samples that differ")


def join_names(
    names: Mapping[str, SampleDims | None],
    own: Mapping[str, Any],
    parts: Mapping[int, Mapping[str, Any] | None],
) -> dict[str, Any]:
    """Return the whole value of each of ``names``; names that cannot be joined are left out.

    Args:
        names: they hold rank 0's part of the last batch, or what it has computed of it, with the
            dimension of the samples in each leaf.
        own: the values of rank 0.
        parts: those of the other indices along ``dp``, by index; None where one was not sent.
    """
    others = [part for _, part in sorted(parts.items()) if part is not None]
    if len(others) < len(parts):
        return {}
    joined = {}
    for name, dims in names.items():
        try:
            values = [own[name], *(part[name] for part in others)]
            joined[name] = join(values) if dims is None else join_leaves(values, dims)
        except (ValueError, RuntimeError, KeyError, TypeError):
            continue
    return joined
