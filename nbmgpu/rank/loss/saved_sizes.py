"""Decides which of the numbers that a loss's graph has saved equal sizes of the shard.

``nbmgpu.rank.source_analysis.size_expressions`` examines how the code computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .autograd_nodes import input_numel, input_shape

MAX_DIMS = 6

LOWEST_DTYPES = {
    True: torch.zeros((), dtype=torch.float16),
    False: torch.zeros((), dtype=torch.int8),
}
"""By is_floating_point: tensors whose dtype a Python number does not promote, but a tensor does."""


def mean_divisors(samples: int, global_samples: int, node: Any) -> set[int]:
    """Return the numbers by which a mean over the samples may divide the sum ``node``.

    These are the number of samples, times the size of all or some of the other dimensions: tokens,
    or pixels without channels.  A number that could as well be such a size for the global batch
    counts only if it consists of the leading dimensions.
    """
    shape = input_shape(node)
    sizes = {samples, input_numel(node)}
    if not samples or len(shape) > MAX_DIMS or not shape:
        return sizes
    leading = [math.prod(shape[1:stop]) for stop in range(1, len(shape) + 1)]
    if shape[0] % samples:  # rows that were selected or concatenated
        return sizes | {shape[0] * n for n in leading}
    products = {math.prod(d) for n in range(len(shape)) for d in combinations(shape[1:], n)}
    of_global_batch = {global_samples * (shape[0] // samples) * n for n in leading}
    return (
        sizes
        | {shape[0] * n for n in leading}
        | ({shape[0] * n for n in products} - of_global_batch)
    )


def scalar_tensors(divisors: Sequence[Any]) -> list[Tensor]:
    """Return the divisors that are tensors of one element."""
    return [d for d in divisors if not is_number(d) and d.numel() == 1]


def is_one_of(number: float, sizes: set[int]) -> bool:
    """Return whether a saved number equals one of ``sizes``, up to the rounding of float32."""
    return any(math.isclose(number, size, rel_tol=1e-6) for size in sizes)


def has_inverse(samples: int, factors: Sequence[float]) -> bool:
    """Return whether one of ``factors`` is 1 / ``samples``."""
    return any(math.isclose(factor * samples, 1.0, rel_tol=1e-6) for factor in factors)


def ratios(samples: int, factors: Sequence[float]) -> set[float]:
    """Return the ``factors`` that may be a ratio of ``samples`` and another integer."""
    others = (f for f in factors if f > 0 and not is_one_of(f, {1, samples}))
    both = ((f, f * samples, samples / f) for f in others if not math.isclose(f * samples, 1))
    return {f for f, *numbers in both if any(map(_is_integer, numbers))}


def _is_integer(number: float) -> bool:
    return math.isclose(number, round(number), rel_tol=1e-9)


def is_global_count(divisor: Any, global_counts: Sequence[Tensor]) -> bool:
    """Return whether a divisor is one of ``global_counts``, or an integer multiple of one.

    Values are only read for tensors that are none of these themselves.
    """
    if not global_counts or not isinstance(divisor, Tensor) or divisor.numel() != 1:
        return False
    if any(divisor is count or divisor.data_ptr() == count.data_ptr() for count in global_counts):
        return True
    multiples = [float(divisor) / max(float(count), 1e-30) for count in global_counts]
    return any(m > 0.5 and math.isclose(m, round(m), rel_tol=1e-6) for m in multiples)


def is_number(value: Any) -> bool:
    """Return whether a saved operand was a Python number.

    Autograd saves it as a tensor that does not take part in type promotion.
    """
    if not isinstance(value, torch.Tensor):
        return True
    if value.ndim or value.device.type != "cpu":
        return False
    lowest = LOWEST_DTYPES[value.dtype.is_floating_point]
    return torch.result_type(lowest, value) == lowest.dtype != value.dtype
