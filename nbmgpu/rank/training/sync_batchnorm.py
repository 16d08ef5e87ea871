"""``--sync-batchnorm``: batch statistics over the global batch, on CPU and GPU.

``torch.nn.SyncBatchNorm`` works on GPUs only.  Here sums, counts and sums of squares
around the global mean are added up over ranks, by operations that autograd can follow
back.  So shares may be uneven, and the numbers are one device's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.mesh import new_dp_group

if TYPE_CHECKING:
    from nbmgpu.rank.session import Session


class BatchNormTap:
    """Takes the place of ``forward`` of torch's batch normalisation."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``.  Collective: statistics have a process group of their own.

        In that group their order in the backward pass is all that counts, wherever
        buckets of gradients leave in between.
        """
        self.session = session
        self.group: Any = new_dp_group(session.strategy.mesh)
        self.patches = PatchStack()

    def install(self) -> None:
        """Put the tap in place."""
        for cls in ("torch.nn.modules.batchnorm._BatchNorm", "torch.nn.SyncBatchNorm"):
            self.patches.wrap(f"{cls}.forward", self._forward)

    def remove(self) -> None:
        """Give the classes their own ``forward`` back."""
        self.patches.remove()

    def _forward(self, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward(module: Any, input: Tensor) -> Any:
            share = self.session.share
            # Where no batch is split, every rank has all of it.
            if not module.training or share is None or not share.is_partial:
                return plain(module, input)
            module._check_input_dim(input)
            with self.session.batch_dependence.paused():
                out = normalise(module, input, self.group, counts=not share.is_padding)
            self.session.batch_dependence.copy_tag(out, input)
            return out

        forward.over_global_batch = True
        return cast("Callable[..., Tensor]", forward)


def is_synchronised(module: nn.Module) -> bool:
    """Tell whether ``module`` normalises over the global batch; False for classes of the user's."""
    return hasattr(type(module).forward, "over_global_batch")


def normalise(module: Any, input: Tensor, group: Any, counts: bool) -> Tensor:
    """Normalise ``input``, the rank's share of shape (samples, channels, ...), as one device would.

    Args:
        module: batch normalisation in training mode; its running statistics are updated.
        input: floating point; half precision is computed in float32.
        group: the ranks that hold the global batch.
        counts: whether the share is part of it, or stands in for an empty one.

    Raises:
        ValueError: there is one value per channel, so no variance.
    """
    axes = [axis for axis in range(input.dim()) if axis != 1]
    shape = [1, -1] + [1] * (input.dim() - 2)
    weight = float(counts)
    with torch.autocast(input.device.type, enabled=False):
        x = input.float() if input.element_size() < 4 else input
        mine = x.new_tensor([weight * x.numel() / x.shape[1]])
        sums = sum_over_ranks(torch.cat([x.sum(axes) * weight, mine]), group)
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
    """Update running statistics with those of a batch; ``variance`` is the unbiased one."""
    module.num_batches_tracked.add_(1)
    momentum = module.momentum
    if momentum is None:  # a cumulative average
        momentum = 1.0 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
    module.running_var.lerp_(variance.to(module.running_var.dtype), momentum)


def sum_over_ranks(value: Tensor, group: Any) -> Tensor:
    """Return the sum of ``value`` over ``group``, as autograd can follow back."""
    return cast(Tensor, AllReduce.apply(value, group))  # type: ignore[no-untyped-call]


class AllReduce(torch.autograd.Function):
    """The sum over ranks.  Its gradient is the sum of theirs, as each rank's result counts."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        """Return the sum of ``value`` over ``group``."""
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the sum of the gradients over the group, which can be followed back again."""
        return sum_over_ranks(grads[0].contiguous(), ctx.group), None
