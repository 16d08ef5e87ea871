"""The collectives that FSDP2 calls, which go through shared memory where ranks have some.

FSDP2 takes such objects by ``FSDPModule.set_custom_all_gather`` and ``set_custom_reduce_scatter``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.collectives import all_gather, reduce_scatter


class _Allocator:
    """Allocates what is sent and received in torch's own memory."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(size, dtype=dtype, device=device)


class AllGather(_Allocator):
    """Gathers parameters."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        """Gather the rows of all ranks of ``group``."""
        all_gather(output_tensor, input_tensor, group)


class ReduceScatter(_Allocator):
    """Reduces gradients."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        """Sum or average the gradients of all ranks of ``group``, of which each gets its rows."""
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise NotImplementedError(f"a reduce-scatter by {op}")  # with a factor: none is set
        reduce_scatter(output_tensor, input_tensor, group)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())
