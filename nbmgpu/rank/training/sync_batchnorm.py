"""``--sync-batchnorm``: batch statistics over the global batch, on CPU and GPU.

``torch.nn.SyncBatchNorm`` works on GPUs only.  Here sums, counts and sums of squares
around the global mean are summed over ranks by differentiable operations.  Shards may be uneven,
and the results are those of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nbmgpu.patches import PatchStack

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from nbmgpu.rank.batch_dependence import BatchDependenceDetector
    from nbmgpu.rank.progress import TrainingProgress


class BatchNormPatch:
    """Replaces ``forward`` of torch's batch normalization."""

    def __init__(
        self,
        new_dp_group: Callable[[], ProcessGroup],
        progress: TrainingProgress,
        batch_dependence: BatchDependenceDetector,
    ) -> None:
        """Normalize over the ranks of the group that ``new_dp_group`` makes."""
        self._new_dp_group = new_dp_group
        self.progress = progress
        self.batch_dependence = batch_dependence
        self.group: Any = None
        self.patches = PatchStack()

    def install(self) -> None:
        """Install the patch, unless it is installed; collective.

        Statistics have a process group of their own.  There only their own order in the backward
        pass matters, wherever buckets of gradients are reduced in between.
        """
        if self.group is not None:
            return
        self.group = self._new_dp_group()
        for cls in ("torch.nn.modules.batchnorm._BatchNorm", "torch.nn.SyncBatchNorm"):
            self.patches.wrap(f"{cls}.forward", self._forward)

    def remove(self) -> None:
        """Restore the classes."""
        self.patches.remove()

    def _forward(self, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward(module: Any, input: Tensor) -> Any:
            shard = self.progress.shard
            # Where no batch is split, every rank has all of it.
            if not module.training or shard is None or not shard.is_partial:
                return plain(module, input)
            module._check_input_dim(input)
            with self.batch_dependence.paused():
                out = normalize(module, input, self.group, counts=not shard.is_padding)
            self.batch_dependence.copy_tag(out, input)
            return out

        forward.over_global_batch = True
        return cast("Callable[..., Tensor]", forward)


def is_synchronised(module: nn.Module) -> bool:
    """Return whether ``module`` normalizes over the global batch; False for the user's classes."""
    return hasattr(type(module).forward, "over_global_batch")


def normalize(module: Any, input: Tensor, group: Any, counts: bool) -> Tensor:
    """Normalize ``input``, the rank's shard, as one device would.

    Args:
        module: batch normalization in training mode; its running statistics are updated.
        input: shape (samples, channels, ...), floating point; half precision is computed in
            float32.
        group: the ranks that hold the global batch.
        counts: whether the shard is part of it, and not padding.

    Raises:
        ValueError: there is one value per channel, so no variance.
    """
    axes = [axis for axis in range(input.dim()) if axis != 1]
    shape = [1, -1] + [1] * (input.dim() - 2)
    weight = float(counts)
    with torch.autocast(input.device.type, enabled=False):
        x = input.float() if input.element_size() < 4 else input
        local_count = x.new_tensor([weight * x.numel() / x.shape[1]])
        sums = sum_over_ranks(torch.cat([x.sum(axes) * weight, local_count]), group)
        count = sums[-1].detach()
        if count <= 1:
            raise ValueError("Expected more than 1 value per channel when training")
        mean = sums[:-1] / count
        centred = x - mean.view(shape)
        squares = sum_over_ranks(centred.square().sum(axes) * weight, group)
        variance = squares / count
        out = centred * torch.rsqrt(variance + module.eps).view(shape)
        if module.affine:
            out = out * module.weight.view(shape) + module.bias.view(shape)
    if module.track_running_stats:
        _track(module, mean.detach(), (squares / (count - 1)).detach())
    return out.to(input.dtype)


@torch.no_grad()
def _track(module: Any, mean: Tensor, variance: Tensor) -> None:
    """Update running statistics with the mean and the unbiased ``variance`` of a batch."""
    module.num_batches_tracked.add_(1)
    momentum = module.momentum
    if momentum is None:  # a cumulative average
        momentum = 1.0 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
    module.running_var.lerp_(variance.to(module.running_var.dtype), momentum)


def sum_over_ranks(value: Tensor, group: Any) -> Tensor:
    """Return the sum of ``value`` over ``group``; differentiable."""
    return cast(Tensor, AllReduce.apply(value, group))  # type: ignore[no-untyped-call]


class AllReduce(torch.autograd.Function):
    """Sum over ranks.  Its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        """Return the sum of ``value`` over ``group``."""
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the sum of the gradients over the group; differentiable again."""
        return sum_over_ranks(grads[0].contiguous(), ctx.group), None
