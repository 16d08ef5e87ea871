"""Numbers that are known, or lie on a device: a CPU's are read at once, a GPU's cost a wait."""

from __future__ import annotations

import torch

Amount = float | torch.Tensor
"""A number, or a tensor of shape () that has it, on another device than the CPU."""


def as_amount(number: torch.Tensor) -> Amount:
    """Return the one element of ``number``: as a float where reading it costs nothing."""
    return float(number.item()) if number.device.type == "cpu" else number.detach().reshape(())


def or_one(total: Amount) -> Amount:
    """Return ``total`` as a divisor: where there is nothing to divide, 1."""
    return total or 1.0 if isinstance(total, float) else torch.where(total == 0, 1.0, total)
