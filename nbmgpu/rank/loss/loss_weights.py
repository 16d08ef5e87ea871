"""Losses weighed before their backward pass, for engines that average gradients by themselves.

An engine computes mean(grad_r) over the ranks.  One device computes
sum(w_r * grad_r) / sum(w_r), where w_r are the samples (or targets) behind rank r's
loss.  Both are equal when the gradient that starts rank r's pass is multiplied by
world_size * w_r / sum(w_r).
"""

from __future__ import annotations

import torch

from nbmgpu.strategies.all_reduce import all_reduce
from nbmgpu.strategies.base import Backward


def share_out(plan: Backward, like: torch.Tensor) -> torch.Tensor:
    """Sum the weights of all ranks and make the losses of ``plan`` global; collective.

    Returns:
        The sum of the weights, float64, shape (), on the device of ``like``.
    """
    weight = torch.as_tensor(plan.weight, dtype=torch.float64, device=like.device).detach()
    sums = torch.zeros(1 + len(plan.scalars), dtype=torch.float64, device=like.device)
    sums[0] = weight
    for place, (scalar, add) in enumerate(zip(plan.scalars, plan.summed, strict=True), start=1):
        value = scalar.detach().double() * (1.0 if add else weight)
        sums[place] = torch.where(weight != 0, value, 0.0)  # an empty share may have given nan
    all_reduce(sums).wait()
    for value, scalar, add in zip(sums[1:], plan.scalars, plan.summed, strict=True):
        scalar.data.copy_(value if add else value / sums[0])
    return sums[0]
