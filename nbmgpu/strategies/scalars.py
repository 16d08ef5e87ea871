"""Scalars that are Python floats on the CPU and tensors on a GPU, where reading would block."""

from __future__ import annotations

import torch

Scalar = float | torch.Tensor
"""A float, or a tensor of shape () on another device than the CPU."""


def as_scalar(number: torch.Tensor) -> Scalar:
    """Return the one element of ``number``: a float on the CPU, else a tensor of shape ()."""
    return float(number.item()) if number.device.type == "cpu" else number.detach().reshape(())


def nonzero_or_one(total: Scalar) -> Scalar:
    """Return ``total``, or 1 where it is 0, for use as a divisor."""
    return total or 1.0 if isinstance(total, float) else torch.where(total == 0, 1.0, total)
