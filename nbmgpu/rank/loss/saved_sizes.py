"""The numbers that a loss's graph has saved: which of them are sizes.

How the code came to them is the matter of ``nbmgpu.rank.source_analysis.size_expressions``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .autograd_nodes import added_up, elements_of

MAX_DIMS = 6

LOWEST = {True: torch.zeros((), dtype=torch.float16), False: torch.zeros((), dtype=torch.int8)}
"""Tensors that stay as they are beside a Python number, but not beside a tensor."""


def sizes_with(samples: int, whole: int, node: Any) -> set[int]:
    """Return what a mean over the samples may divide a sum by: their number, times what each has.

    That may be all of its dimensions or some: tokens, or pixels and not channels.  What could as
    well be such a number for the whole batch is one only by the first dimensions.
    """
    shape = added_up(node)
    sizes = {samples, elements_of(node)}
    if not samples or len(shape) > MAX_DIMS or not shape:
        return sizes
    first = [math.prod(shape[1:number]) for number in range(1, len(shape) + 1)]
    if shape[0] % samples:  # rows that were chosen, or joined
        return sizes | {shape[0] * n for n in first}
    some = {math.prod(d) for n in range(len(shape)) for d in combinations(shape[1:], n)}
    of_whole = {whole * (shape[0] // samples) * number for number in first}
    return sizes | {shape[0] * n for n in first} | ({shape[0] * n for n in some} - of_whole)


def scalars(divisors: Sequence[Any]) -> list[Tensor]:
    """Return the divisors that are tensors of one element."""
    return [d for d in divisors if not is_number(d) and d.numel() == 1]


def is_one_of(number: float, sizes: set[int]) -> bool:
    """Tell whether a number that a graph has saved is one of ``sizes``, to float32's rounding."""
    return any(math.isclose(number, size, rel_tol=1e-6) for size in sizes)


def has_one_over(samples: int, factors: Sequence[float]) -> bool:
    """Tell whether one of ``factors`` is 1 / ``samples``."""
    return any(math.isclose(factor * samples, 1.0, rel_tol=1e-6) for factor in factors)


def ratios(samples: int, factors: Sequence[float]) -> set[float]:
    """Return those of ``factors`` that may be a whole number by ``samples``, or the other way."""
    others = (f for f in factors if f > 0 and not is_one_of(f, {1, samples}))
    both = ((f, f * samples, samples / f) for f in others if not math.isclose(f * samples, 1))
    return {f for f, *numbers in both if any(map(_is_whole, numbers))}


def _is_whole(number: float) -> bool:
    return math.isclose(number, round(number), rel_tol=1e-9)


def is_total(divisor: Any, totals: Sequence[Tensor]) -> bool:
    """Tell whether a divisor is one of ``totals``, or an integer multiple of one.

    Only for other tensors than these themselves are values read.
    """
    if not totals or not isinstance(divisor, Tensor) or divisor.numel() != 1:
        return False
    if any(divisor is total or divisor.data_ptr() == total.data_ptr() for total in totals):
        return True
    times = [float(divisor) / max(float(total), 1e-30) for total in totals]
    return any(t > 0.5 and math.isclose(t, round(t), rel_tol=1e-6) for t in times)


def is_number(value: Any) -> bool:
    """Tell whether a saved operand was a Python number: such a tensor yields to any other."""
    if not isinstance(value, torch.Tensor):
        return True
    if value.ndim or value.device.type != "cpu":
        return False
    low = LOWEST[value.dtype.is_floating_point]
    return torch.result_type(low, value) == low.dtype != value.dtype
