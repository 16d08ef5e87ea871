"""Clipping by the norm of gradients of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup


def clip_sharded(
    parts: Sequence[Tensor],
    counted: Sequence[Tensor],
    others: list[Tensor],
    norm_type: float,
    device: torch.device,
    groups: Sequence[ProcessGroup | None],
    plain: Callable[[list[Tensor]], Tensor],
) -> Tensor:
    """Clip gradients by the norm of all of them; collective over ``groups``.

    Args:
        parts: this rank's parts of sharded gradients, at least one; changed in place.
        counted: those of them that no other rank counts.
        others: parameters with full gradients, the same on all ranks.
        norm_type: p of the p-norm.
        device: where the norm is computed.
        groups: the ranks that hold the parts, along each dimension of the mesh; None for all.
        plain: clips the gradients of parameters and returns their norm.

    Returns:
        The norm before clipping, shape ().
    """
    norm_type = float(norm_type)
    norms = torch.stack(
        [torch.linalg.vector_norm(part, norm_type) for part in counted if part.numel()]
        or [torch.zeros((), device=parts[0].device)]
    ).to(device)
    infinite = norm_type == float("inf")
    power = norms.max() if infinite else (norms**norm_type).sum()
    for group in groups:
        dist.all_reduce(power, dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=group)
    # One parameter, with their norm for its gradient, represents all sharded ones.
    proxy = nn.Parameter(torch.zeros(1, dtype=power.dtype, device=device))
    before = (power if infinite else power ** (1 / norm_type)).reshape(1)
    proxy.grad = before.clone()
    total = plain([proxy, *others])
    factor = torch.where(before > 0, proxy.grad / before, torch.ones_like(before))
    for part in parts:
        part.mul_(factor.to(part.device, part.dtype))
    return total
