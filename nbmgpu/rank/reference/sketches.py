"""Sketches of gradients: a few sums that tell whether two gradients are equal.

The sketch of a tensor has the sums of all elements whose index is the same modulo ``SUMS``.  It is
linear, so those of the parts that ranks hold add up to that of the whole, and the sketch of a
difference is about as long as the difference itself.  This is a count sketch (Charikar et al.,
Finding Frequent Items in Data Streams, 2002) with one row, and the index instead of a hash.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.strategies.base import Strategy

SUMS = 61
"""Sums per tensor: a prime, so that no column of a weight, which may sum to 0, is one of them."""

COLUMNS = 2 + SUMS
"""Columns of a row: whether there is a gradient, the square of its norm, and its sums."""

ROUNDING = 1e-2
"""The part of the largest norm that counts as a norm at least."""

LARGEST_SPARSE = 1 << 24
"""Elements that a sparse gradient may have in full."""


def sketches_of(optimizer: Optimizer, strategy: Strategy) -> Tensor:
    """Return a row for each parameter of ``optimizer``, of this rank's part of its gradient.

    Args:
        optimizer: about to take a step.
        strategy: of the rank.

    Returns:
        float64, shape (parameters, ``COLUMNS``), on the CPU; rows of all ranks add up.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rows = torch.zeros(len(parameters), COLUMNS, dtype=torch.float64)
    alike: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            part, start = strategy.gradient_part(parameter)
            dense = None if part is None else _dense(part)
            if dense is not None:
                row = _row(dense, start)
                alike.setdefault((row.device, row.dtype), []).append((index, row))
        for group in alike.values():  # one copy each, for which the host waits
            indices, group_rows = zip(*group, strict=True)
            rows[list(indices), 1:] = torch.stack(group_rows).cpu().double()
            rows[list(indices), 0] = 1.0
    rows[:, 1] **= 2
    return rows


def _dense(part: Tensor) -> Tensor | None:
    if part.is_sparse:
        return part.to_dense() if part.numel() <= LARGEST_SPARSE else None
    return torch.view_as_real(part) if part.is_complex() else part


def _row(part: Tensor, start: int) -> Tensor:
    """Return norm and sums of ``part``, whose first element has index ``start`` in the whole."""
    flat = part.detach().reshape(-1)
    dtype = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.numel() // SUMS * SUMS
    sums = flat[:whole].view(-1, SUMS).sum(0, dtype=dtype)
    sums[: flat.numel() - whole] += flat[whole:]
    norm = torch.linalg.vector_norm(flat, dtype=dtype)
    return torch.cat([norm.reshape(1), sums.roll(start % SUMS)])


def relative_errors(here: Tensor, there: Tensor) -> Tensor:
    """Return how far the gradients of two rows of sketches are apart, by parameter.

    The distance is divided by the norm of the gradient, and at least by a small part of the norm
    of all: a gradient that is zero but for rounding is no difference.

    Args:
        here: sketches on one device, shape (parameters, ``COLUMNS``).
        there: the sum of those of all ranks, of the same shape.

    Returns:
        float64, shape (parameters,); infinite where only one of both is there, or finite.
    """
    norms = here[:, 1].sqrt()
    largest = norms[norms.isfinite()]
    floor = ROUNDING * float(largest.max()) if len(largest) else 0.0
    distances = (here[:, 2:] - there[:, 2:]).norm(dim=1)
    lengths = (norms - there[:, 1].sqrt()).abs()
    errors = torch.maximum(distances, lengths) / norms.clamp(min=max(floor, math.ulp(0.0)))
    finite = here[:, 1:].isfinite().all(1), there[:, 1:].isfinite().all(1)
    errors[~finite[0] & ~finite[1]] = 0.0
    errors[finite[0] != finite[1]] = math.inf
    # A gradient of zeros may also be none.
    is_one_missing = (here[:, 0] > 0) != (there[:, 0] > 0)
    errors[is_one_missing & (norms == there[:, 1].sqrt())] = 0.0
    errors[(here[:, 0] == 0) & (there[:, 0] == 0)] = 0.0
    return errors.nan_to_num(0.0, posinf=math.inf)
