"""Batch normalization in a call on this rank's samples: the statistics are of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.overrides import wrap_torch_function

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.collectives import all_reduce
from nbmgpu.strategies.sequence.region import Region
from nbmgpu.strategies.sharding.collectives import replicate_input, sum_partials

from .region import BatchRegion

aten = torch.ops.aten


def patch_batch_norm(patches: PatchStack) -> None:
    """Let batch normalization act on the region that runs."""

    def wrap(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        # As of ``dropout``: a mode of torch would have ``plain`` call this function.
        @wrap_torch_function(lambda input, *_, **__: (input,))
        def batch_norm(
            input: Tensor,
            running_mean: Tensor | None,
            running_var: Tensor | None,
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Tensor:
            if training and (statistics := BatchStatistics.current) is not None:
                found = statistics.of(input)
                if found is not None:
                    return plain(input, *found, weight, bias, False, momentum, eps)
            region = Region.current
            if training and isinstance(region, BatchRegion):
                return normalize(
                    input, (running_mean, running_var), (weight, bias), momentum, eps, region
                )
            return plain(input, running_mean, running_var, weight, bias, training, momentum, eps)

        return batch_norm

    patches.wrap("torch.nn.functional.batch_norm", wrap)


class BatchStatistics:
    """Mean and variance in each batch normalization of a call, for later calls with other samples.

    Attributes:
        current: those of the call that runs now.
    """

    current: ClassVar[BatchStatistics | None] = None

    def __init__(self) -> None:
        """Start without statistics."""
        self._found: list[tuple[Tensor, Tensor]] = []
        self._known: Iterator[tuple[Tensor, Tensor]] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the statistics in the body."""
        BatchStatistics.current = self
        try:
            yield
        finally:
            BatchStatistics.current = None

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Let batch normalization in the body use the recorded statistics."""
        self._known = iter(self._found)
        with self.recording():
            yield
        self._known = None

    def of(self, input: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the recorded mean and variance; record them if there are none, and return None."""
        if self._known is not None:
            return next(self._known)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        variance, mean = torch.var_mean(input.detach(), dims, correction=0)
        self._found.append((mean, variance))
        return None


def normalize(
    input: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    momentum: float,
    eps: float,
    region: BatchRegion,
) -> Tensor:
    """Normalize this rank's samples by the mean and variance of the batch; collective.

    Args:
        input: shape (samples, channels, ...).
        running: running mean and variance, which are updated; or None.
        affine: weight and bias; or None.
        momentum, eps: as of ``torch.nn.functional.batch_norm``.
        region: the samples.
    """
    region.before_collective()
    mean, variance, count = _statistics(input.detach(), region)
    for kept, found in zip(running, (mean, variance * (count / (count - 1))), strict=True):
        if kept is not None:
            # Another graph of this step may have saved the statistics, and does not read them.
            kept.data.lerp_(found.to(kept.dtype), momentum)
    weight, bias = affine
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    return BatchNorm.apply(input, weight, bias, mean, variance, count, eps, region.group)  # type: ignore[no-any-return, no-untyped-call]


def _statistics(part: Tensor, region: BatchRegion) -> tuple[Tensor, Tensor, int]:
    """Return mean and variance of each channel in the batch, and the number of elements.

    Those of the ranks are combined as by Chan, Golub and LeVeque (1979).
    """
    wide = torch.float64 if part.dtype == torch.float64 else torch.float32
    channels = part.shape[1]
    per_sample = part.numel() // channels // region.size
    found = torch.cat(torch.batch_norm_update_stats(part, None, None, 0.0))
    table = torch.zeros(len(region.sizes), 2 * channels, dtype=torch.float64, device=part.device)
    table[region.group.rank()] = found
    all_reduce(table.view(-1), region.group).wait()
    means, variances = table.split(channels, 1)
    shares = table.new_tensor(region.sizes).unsqueeze(1) / region.length
    mean = (means * shares).sum(0)
    variance = ((variances + (means - mean).square()) * shares).sum(0)
    return mean.to(wide), variance.to(wide), per_sample * region.length


class BatchNorm(torch.autograd.Function):
    """Normalizes by statistics of the batch, on which the gradient depends as well."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: int,
        eps: float,
        group: ProcessGroup,
    ) -> Tensor:
        """Normalize; the statistics are no inputs of autograd's graph."""
        ctx.save_for_backward(input, weight, bias, mean, variance)
        ctx.count, ctx.eps, ctx.group = count, eps, group
        return torch.native_batch_norm(input, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of this rank's samples, and its part of those of weight and bias."""
        input, weight, bias, mean, variance = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            inputs = [x for x in (input, weight, bias) if x.requires_grad]
            output = _composed(input, weight, bias, ctx.count, ctx.eps, ctx.group)
            found = iter(torch.autograd.grad(output, inputs, grad, create_graph=True))
            grads = [next(found) if x.requires_grad else None for x in (input, weight, bias)]
            return *grads, None, None, None, None, None
        scale = (variance + ctx.eps).rsqrt()
        of_input, of_weight, of_bias = aten.native_batch_norm_backward(
            grad, input, weight, mean, variance, mean, scale, False, ctx.eps, [True, True, True]
        )
        channels = len(mean)
        sums = torch.cat([of_weight, of_bias])
        all_reduce(sums, ctx.group).wait()
        slope = weight * scale.square() * sums[:channels] / ctx.count
        offset = weight * scale * sums[channels:] / ctx.count - slope * mean
        shape = [1, -1, *[1] * (input.dim() - 2)]
        of_input.addcmul_(input, slope.view(shape).to(input.dtype), value=-1)
        of_input.sub_(offset.view(shape).to(input.dtype))
        return of_input, of_weight, of_bias, None, None, None, None, None


def _composed(
    input: Tensor, weight: Tensor, bias: Tensor, count: int, eps: float, group: ProcessGroup
) -> Tensor:
    """Return the same as ``BatchNorm``, by operations that can be differentiated repeatedly."""
    axes = [axis for axis in range(input.dim()) if axis != 1]
    shape = [1, -1, *[1] * (input.dim() - 2)]

    def total(values: Tensor) -> Tensor:
        return replicate_input(sum_partials(values.sum(axes), group), group) / count

    centred = input - total(input).view(shape)
    variance = total(centred.square())
    normalized = centred * (variance + eps).rsqrt().view(shape)
    return normalized * weight.view(shape) + bias.view(shape)
