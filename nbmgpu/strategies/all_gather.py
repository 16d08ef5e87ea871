"""All-gather and reduce-scatter of equal parts, as sharded parameters need them.

Both go through shared memory for CPU tensors of all ranks, else through the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from . import all_reduce

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

# Torch before 2.12 has them under other names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(output: Tensor, own: Tensor, group: ProcessGroup | None = None) -> None:
    """Write the ``own`` tensors of all ranks of ``group`` to ``output``, in order; collective.

    Args:
        output: world size * n elements, contiguous; ``own`` may be a part of it.
        own: n elements, contiguous, of the same dtype.
        group: None for all ranks, which can use shared memory.
    """
    if (memory := all_reduce.shared_memory_for(own, group)) is not None:
        memory.all_gather(output, own)
    else:
        _all_gather_single(output, own, group=group)


def reduce_scatter(output: Tensor, full: Tensor, group: ProcessGroup | None = None) -> None:
    """Write this rank's part of the sum of all ranks' ``full`` tensors to ``output``; collective.

    Args:
        output: n elements, contiguous.
        full: world size * n elements, contiguous, of the same dtype.
        group: None for all ranks, which can use shared memory.
    """
    if (memory := all_reduce.shared_memory_for(full, group)) is not None:
        memory.reduce_scatter(output, full)
    else:
        _reduce_scatter_single(output, full, group=group)
