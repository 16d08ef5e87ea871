"""Weights losses before their backward pass, for engines that average gradients by themselves.

An engine computes mean(grad_r) over the ranks of ``dp``.  One device computes
sum(w_r * grad_r) / sum(w_r), where w_r is the number of samples (or targets) in rank r's loss.
Both are equal if the gradient that starts rank r's backward pass is multiplied by
dp_size * w_r / sum(w_r).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmgpu.strategies.all_reduce import all_reduce
from nbmgpu.strategies.base import Backward
from nbmgpu.strategies.scalars import Scalar

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
    if like.device.type == "cpu":
        return _all_reduce_on_host(plan, dp_group)
    weight = torch.zeros((), dtype=torch.float64, device=like.device)
    if isinstance(plan.weight, torch.Tensor):
        weight.copy_(plan.weight.detach())
    else:
        weight.fill_(plan.weight)  # a copy from the host would wait for the device
    sums = torch.zeros(1 + len(plan.scalars), dtype=torch.float64, device=like.device)
    sums[0] = weight
    for index, (scalar, is_sum) in enumerate(zip(plan.scalars, plan.summed, strict=True), start=1):
        value = scalar.detach().double() * (1.0 if is_sum else weight)
        sums[index] = torch.where(weight != 0, value, 0.0)  # a padding shard may yield nan
    all_reduce(sums, dp_group).wait()
    for value, scalar, is_sum in zip(sums[1:], plan.scalars, plan.summed, strict=True):
        scalar.data.copy_(value if is_sum else value / sums[0])
    return sums[0]


def _all_reduce_on_host(plan: Backward, dp_group: ProcessGroup | None) -> float:
    """Do the same with losses on the CPU, in Python's floats, which take less time."""
    weight = float(plan.weight)
    own = [weight]
    for scalar, is_sum in zip(plan.scalars, plan.summed, strict=True):
        value = scalar.item() * (1.0 if is_sum else weight)
        own.append(value if weight else 0.0)  # a padding shard may yield nan
    sums = torch.tensor(own, dtype=torch.float64)
    all_reduce(sums, dp_group).wait()
    for value, scalar, is_sum in zip(sums[1:], plan.scalars, plan.summed, strict=True):
        scalar.data.copy_(value if is_sum else value / sums[0])  # inf if it is too large
    return float(sums[0])
