"""How the values that ranks log for their shards of a batch combine over the global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from nbmgpu.rank.data.batch_shard import BatchShard
from nbmgpu.rank.loss.divisors import Meaning
from nbmgpu.rank.loss.graph_reader import AgreeOnDivisors, local_meanings, read_graph
from nbmgpu.rank.loss.loss_graph import LossGraph

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Reduction:
    """How the ranks' values combine: the kind of reduction, and the weight of a mean.

    ``weight`` is None for a mean over the samples of the shard.
    """

    kind: str = "mean"
    weight: Tensor | None = None


def reduce_over_ranks(
    entries: list[tuple[Tensor, int, Reduction]],
    shard: BatchShard,
    device: str,
    dp_group: Any = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Combine the ranks' values; collective.

    Args:
        entries: for each, the rank's value (shape ()), its batch size and its reduction.
        shard: the rank's shard of the batch.
        device: where the ranks exchange the numbers.
        dp_group: process group of the data-parallel ranks; None for all ranks.

    Returns:
        The global values (float64) and batch sizes (int64), of shape ().
    """
    local = torch.zeros(len(entries) + 1, 3, dtype=torch.float64, device=device)
    local[-1] = torch.tensor(
        [shard.weight, not shard.is_padding, shard.global_samples], dtype=torch.float64
    )
    for index, (value, size, reduction) in enumerate(entries):
        local[index, 0] = value
        local[index, 1] = size
        local[index, 2] = 0.0 if reduction.weight is None else reduction.weight
    ranks = _gathered(local, dp_group)
    weights, real, whole = ranks[:, -1].T
    values: list[Tensor] = []
    sizes: list[Tensor] = []
    for index, (_, _, reduction) in enumerate(entries):
        value, size, count = ranks[:, index].T
        value = torch.where(real > 0, value, 0.0)  # a padding batch may give nan
        alike = (size == size[0]).all()
        if reduction.kind == "mean":
            by_size = torch.where(alike, weights, size * real)
            by = count * real if reduction.weight is not None else by_size
            values.append((value * by).sum() / by.sum())
        elif reduction.kind == "sum":
            values.append(value.sum())
        else:
            off = torch.where(real > 0, value, float("-inf" if reduction.kind == "max" else "inf"))
            values.append(off.max() if reduction.kind == "max" else off.min())
        # A padding batch has samples of rank 0.  A size that is the same on all ranks, whatever
        # their shards, is a constant, which counts once per rank.
        constant = alike & (size[0] != whole[0])
        sizes.append(torch.where(constant, size.sum(), (size * real).sum()).long())
    return values, sizes


def read_reduction(
    value: Tensor, shard: BatchShard, agree: AgreeOnDivisors = local_meanings
) -> Reduction:
    """Read from a loss's graph how the ranks' values combine; collective if ``agree`` is."""
    agreed = False

    def once(*loss: Any) -> list[Meaning]:
        nonlocal agreed
        agreed = True
        return agree(*loss)

    graph = LossGraph()
    if value.grad_fn is not None and value.numel() == 1:
        try:
            graph = read_graph(value, shard.samples, shard.global_samples, agree=once)
        except RuntimeError:  # its saved tensors are freed: it has been through a backward pass
            if agreed:
                raise
    if not agreed:
        agree((), [], False)
    if graph.reduction == "sum":
        return Reduction("sum")
    if graph.counts:
        return Reduction("mean", torch.as_tensor(graph.counts[0][0]).detach())
    return Reduction()


def requested_reduction(meta: Any, reduction: Reduction) -> Reduction:
    """Return ``reduction`` unless the user has chosen how values of steps are reduced."""
    for kind in ("sum", "max", "min"):
        if getattr(meta, f"is_{kind}_reduction"):
            return Reduction(kind)
    return reduction


def is_same_number(value: Tensor, loss: Tensor | None) -> bool:
    """Return whether a logged number is the loss; false on a GPU, where reading would block."""
    if loss is None or value.device.type != "cpu" or loss.numel() != 1:
        return False
    return float(value) == float(loss.detach())


def gather_numbers(numbers: list[int]) -> list[tuple[int, ...]]:
    """Return the numbers of every rank; on the CPU, without a device synchronisation."""
    return [tuple(row) for row in _gathered(torch.tensor(numbers)).tolist()]


def _gathered(local: Tensor, group: Any = None) -> Tensor:
    """Return the tensors of the ranks in ``group``, None for all, stacked; collective."""
    ranks = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(ranks, local, group)
    return torch.stack(ranks)
