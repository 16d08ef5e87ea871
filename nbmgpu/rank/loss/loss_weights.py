"""Weights losses before their backward pass, for engines that average gradients by themselves.

An engine computes mean(grad_r) over the ranks of ``dp``.  One device computes
sum(w_r * grad_r) / sum(w_r), where w_r is the number of samples (or targets) in rank r's loss.
Both are equal if the gradient that starts rank r's backward pass is multiplied by
dp_size * w_r / sum(w_r).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmgpu.strategies.base import Backward
from nbmgpu.strategies.collectives import all_reduce
from nbmgpu.strategies.scalars import Scalar, as_scalar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def all_reduce_losses(
    plan: Backward, like: torch.Tensor, dp_group: ProcessGroup | None = None
) -> Scalar:
    """Sum the weights over ``dp``, and set the losses of ``plan`` to global values; collective.

    Args:
        plan: the weight and the losses of this rank.
        like: a tensor on the device of the losses.
        dp_group: the data-parallel ranks; None for all.

    Returns:
        The sum of the weights: a float on the CPU, else float64, shape (), on the device of
        ``like``.
    """
    sums = _on_host(plan) if like.device.type == "cpu" else _on_device(plan, like.device)
    all_reduce(sums, dp_group).wait()
    for value, scalar, is_sum in zip(sums[1:], plan.scalars, plan.summed, strict=True):
        scalar.data.copy_(value if is_sum else value / sums[0])  # inf if it is too large
    return as_scalar(sums[0])


def _on_device(plan: Backward, device: torch.device) -> torch.Tensor:
    """Return this rank's weight, and its losses as they add up, without a wait for the device."""
    weight = torch.zeros((), dtype=torch.float64, device=device)
    if isinstance(plan.weight, torch.Tensor):
        weight.copy_(plan.weight.detach())
    else:
        weight.fill_(plan.weight)  # a copy from the host would wait for the device
    sums = torch.zeros(1 + len(plan.scalars), dtype=torch.float64, device=device)
    sums[0] = weight
    for index, (scalar, is_sum) in enumerate(zip(plan.scalars, plan.summed, strict=True), start=1):
        value = scalar.detach().double() * (1.0 if is_sum else weight)
        sums[index] = torch.where(weight != 0, value, 0.0)  # a padding shard may yield nan
    return sums


def _on_host(plan: Backward) -> torch.Tensor:
    """Return the same for losses on the CPU, by Python's floats, which take less time."""
    weight = float(plan.weight)
    sums = [weight]
    for scalar, is_sum in zip(plan.scalars, plan.summed, strict=True):
        value = scalar.item() * (1.0 if is_sum else weight)
        sums.append(value if weight else 0.0)  # a padding shard may yield nan
    return torch.tensor(sums, dtype=torch.float64)
