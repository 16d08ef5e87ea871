"""What ranks other than 0 return for a comparison with rank 0: small values, and sums of others."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

from nbmgpu.rank.reference.values import keeps_values, small_values
from nbmgpu.serialization.value_tree import leaves_of

MAX_ELEMENTS = 100_000
"""Elements that a value may have to be returned."""

SAMPLED = 1 << 16
"""Elements of a large tensor that are compared, so that no memory is needed for it."""


def is_small(value: Any) -> bool:
    """Return whether ``value`` is a number, a string, or a small container of these."""
    return _count_elements(value, MAX_ELEMENTS, depth=3) <= MAX_ELEMENTS


def summary_of(value: Any) -> list[Any] | None:
    """Return the leaves of a container of tensors, with shape, type and a norm for each tensor.

    Two values with different summaries differ.  Of an object of the user's, or an estimator of
    scikit-learn, the small values in it.  None for others, and if something in ``value`` is no
    leaf.
    """
    if keeps_values(type(value)):
        with suppress(Exception):  # whatever the user's classes do: results must not be lost
            return [[path, small] for path, small in small_values({"self": value}).items()]
        return None
    if not isinstance(value, torch.Tensor) and type(value) not in SUPPORTED_NODES:
        return None
    leaves = leaves_of(value)
    return None if leaves is None else [_summary_of_leaf(leaf) for leaf in leaves]


def _summary_of_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf if isinstance(leaf, bool | int | float | str) else None
    if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or not leaf.is_contiguous():
        return None
    with torch.no_grad():
        step = max(1, leaf.numel() // SAMPLED)
        some = leaf.detach().view(-1)[::step].cpu()
        norm = 0.0 if some.is_complex() else some.double().nan_to_num().norm().item()
    return [*leaf.shape, str(leaf.dtype), norm]


def _count_elements(value: Any, limit: int, depth: int) -> float:
    """Return the number of elements of ``value``, infinite if it is not plain data.

    Stops counting above ``limit``.  Each item of a container counts as one, plus its own elements.
    """
    if value is None or isinstance(value, bool | int | float | complex):
        return 0
    if isinstance(value, str):
        return len(value)
    if isinstance(value, torch.Tensor):
        return value.numel() if type(value) is torch.Tensor else math.inf
    if type(value).__module__ == "numpy":
        return getattr(value, "size", math.inf)
    if not depth or not isinstance(value, list | tuple | dict | set | deque):
        return math.inf
    total = float(len(value))
    for item in value.values() if isinstance(value, dict) else value:
        total += _count_elements(item, limit, depth - 1)
        if total > limit:
            break
    return total
