"""Inputs of a trial of which a part is multiplied.

What runs on parts of its input may agree with the whole although parts meet: behind a threshold
that the input has not reached, as in ``if x.abs().max() > 100:`` or ``torch.where``.  Numbers of
another magnitude in one part reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .tensor_reads import ReadRecorder

FACTORS = 30.0, 1 / 30, -30.0
"""What a part is multiplied by, in one trial each: larger ones would amplify rounding, too.

A part of zeros, which no batch has, may never end a loop (``while y.norm() < 1: y = 2 * y``).
"""

LARGEST = 1e4
"""Numbers of this magnitude and larger stay as they are: masks have them, and infinity."""


def trial_factors(reads: ReadRecorder) -> Sequence[float]:
    """Return the factors for what has read such numbers; without a number, it cannot branch."""
    return FACTORS if reads.found else FACTORS[:1]


def multiplied(leaf: Any, dim: int, start: int, factor: float) -> Any:
    """Return an argument, its elements from ``start`` along ``dim`` multiplied by ``factor``.

    Returns:
        A new leaf of autograd's graph; what is no tensor of floating point numbers unchanged.
    """
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dim() <= dim:
        return leaf
    changed = leaf.detach().clone()
    part = changed.narrow(dim, start, leaf.shape[dim] - start)
    part.copy_(torch.where(part.abs() < LARGEST, part * factor, part))
    return changed.requires_grad_(leaf.requires_grad)
