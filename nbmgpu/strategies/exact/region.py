"""One call of a module on this rank's samples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nbmgpu.strategies.sequence.region import NotSplittableError, Region
from nbmgpu.strategies.sharding.collectives import sum_partials

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .draws import DrawsOfBatch


@dataclass(frozen=True)
class SampleDim:
    """The dimension of a tensor along which its samples are.

    Attributes:
        dim: the dimension.
        per_sample: number of elements along it for each sample: 5 where (batch, 5, features) is
            flattened to (batch * 5, features).
    """

    dim: int
    per_sample: int = 1


@dataclass(eq=False)
class BatchRegion(Region):
    """One call of a module on this rank's samples.

    Attributes:
        before_collective: called before each collective in the call; in a trial, it raises
            NotSplittableError if another rank has failed.
        draws: draws for the whole batch; None where the module draws no random numbers.
        will_average: whether the backward pass that runs now is one after which the strategy
            averages the gradients of all parameters with ``is_averaged``.
    """

    before_collective: Callable[[], None] = lambda: None
    draws: DrawsOfBatch | None = None
    will_average: Callable[[], bool] = lambda: False

    def replicate(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return replicated tensors for the call, whose gradients add up over the ranks."""
        summed = [t for t in tensors if not is_averaged(t)]
        used = dict(zip(summed, super().replicate(*summed), strict=True)) if summed else {}
        context = self.will_average, self.group
        return [
            AveragedParameter.apply(t, *context) if is_averaged(t) else used[t]  # type: ignore[no-untyped-call]
            for t in tensors
        ]

    def find(self, part: torch.Size, whole: torch.Size) -> SampleDim | None:
        """Return the dimension of samples of a tensor; None if it is the same for all samples.

        Args:
            part: its shape in a call with this rank's samples.
            whole: its shape in a call with all samples.

        Raises:
            NotSplittableError: the shapes differ otherwise.
        """
        if part == whole:
            return None
        differ = [d for d, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b]
        if len(part) == len(whole) and len(differ) == 1:
            found = SampleDim(differ[0], part[differ[0]] // self.size)
            if self.whole_shape(part, found) == whole:
                return found
        raise NotSplittableError(
            f"a tensor of shape {tuple(whole)} has shape {tuple(part)} for {self.size} of "
            f"{self.length} samples"
        )

    def fits(self, part: torch.Size, found: SampleDim | None) -> bool:
        """Whether a tensor of shape ``part`` may have its samples along ``found``."""
        if found is None:
            return True
        return len(part) > found.dim and part[found.dim] == self.size * found.per_sample

    def whole_shape(self, part: torch.Size, found: SampleDim | None) -> torch.Size:
        """Return the shape for all samples of a tensor of shape ``part``.

        Raises:
            NotSplittableError: it has another number of samples than the slice.
        """
        if found is None:
            return part
        if not self.fits(part, found):
            raise NotSplittableError(f"a tensor has shape {tuple(part)}, unlike in its trial")
        sizes = list(part)
        sizes[found.dim] = self.length * found.per_sample
        return torch.Size(sizes)

    def part(self, whole: Tensor, found: SampleDim | None) -> Tensor:
        """Return this rank's samples of a tensor, a view."""
        if found is None:
            return whole
        each = found.per_sample
        return whole.narrow(found.dim, self.start * each, self.size * each)

    def gather_samples(self, part: Tensor, found: SampleDim | None) -> Tensor:
        """Return the tensor of all samples, for computations that are the same on all ranks."""
        if found is None:
            return part
        if found.per_sample == 1:
            return self.gather(part, found.dim)
        samples = part.unflatten(found.dim, (self.size, found.per_sample))
        return self.gather(samples, found.dim).flatten(found.dim, found.dim + 1)


def is_averaged(parameter: Any) -> bool:
    """Whether the strategy averages the gradients of a parameter after each backward pass."""
    return getattr(parameter, "is_averaged", False)


class AveragedParameter(torch.autograd.Function):
    """Keeps a parameter whose gradients the strategy averages over the ranks, and sums these.

    The mean of gradients that are multiplied by the number of ranks is their sum.  Where no average
    follows, as in ``torch.autograd.grad()``, or a hook of the cell sees them before, they are
    summed here.  Each parameter has its own: a function of several would call the hooks of all of
    them, also where some have no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, parameter: Tensor, will_average: Callable[[], bool], group: ProcessGroup
    ) -> Tensor:
        """Return a view of the parameter."""
        ctx.parameter, ctx.will_average, ctx.group = parameter, will_average, group
        ctx.set_materialize_grads(False)
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None, None]:
        """Multiply the gradient, or sum it."""
        if grad is None:
            return None, None, None
        is_seen = torch.is_grad_enabled() or ctx.parameter._backward_hooks
        if is_seen or not ctx.will_average():
            return sum_partials(grad, ctx.group), None, None
        return grad * ctx.group.size(), None, None
