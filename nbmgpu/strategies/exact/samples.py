"""One call of a module on this rank's samples, and what it changes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_flatten

from nbmgpu.strategies.graph_leaves import leaves_of_graph
from nbmgpu.strategies.outcome import is_close, largest_of
from nbmgpu.strategies.sequence.slices import run_on_slices
from nbmgpu.strategies.sequence.trial import Subject

from .precision import EPSILON
from .region import BatchRegion


def split_arguments(leaves: Sequence[Any], region: BatchRegion) -> tuple[bool, ...]:
    """Return which arguments have a sample at each index of the region's dimension."""
    return tuple(
        isinstance(x, Tensor) and x.dim() > region.dim and x.shape[region.dim] == region.length
        for x in leaves
    )


def call_on_samples(
    subject: Subject,
    region: BatchRegion,
    arguments: tuple[Sequence[Any], Any],
    split: Sequence[bool],
) -> tuple[list[Any], Any]:
    """Call a module on this rank's samples of its arguments.

    Args:
        subject: the module.
        region: the samples.
        arguments: the leaves of the module's arguments, and their structure.
        split: which leaves are split; the others are the same for all samples.

    Returns:
        The leaves of the output, and its structure.

    Raises:
        NotSplittableError: it is not as in its trial.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with region.draws.active() if region.draws else nullcontext():
            return subject.call(*args, **kwargs)

    return run_on_slices(subject.module, call, region, arguments, split)


def with_share(output: Any, group: ProcessGroup) -> Any:
    """Return an output that is the same for all samples, whose gradients add up over the ranks."""
    if not isinstance(output, Tensor) or not output.requires_grad:
        return output
    return ScaledGradient.apply(output, 1 / group.size())  # type: ignore[no-untyped-call]


class ScaledGradient(torch.autograd.Function):
    """Keeps a tensor, and scales its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        """Return a view of the tensor."""
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Scale the gradient."""
        return grads[0] * ctx.factor, None


def foreign_leaves(outputs: Sequence[Any], inputs: Sequence[Tensor]) -> bool:
    """Whether the graph of ``outputs`` leads to leaves other than ``inputs``."""
    known = {id(tensor) for tensor in inputs}
    return any(id(leaf) not in known for leaf in leaves_of_graph(outputs))


class ModuleChanges:
    """What a module holds after a call, besides its parameters."""

    def __init__(self, module: nn.Module) -> None:
        """Copy the tensors that ``module`` holds, and refer to all else."""
        own = ("_modules", "_parameters", "_buffers")
        values, self._structure = tree_flatten(
            [
                ({k: v for k, v in vars(each).items() if k not in own}, [*each._buffers])
                for each in module.modules()
            ]
        )
        self._values = [_kept(value) for value in values]
        self._buffers = [_kept(b) for each in module.modules() for b in each._buffers.values()]

    def equal(self, other: ModuleChanges) -> bool:
        """Whether both are the same; buffers, such as running statistics, but for rounding."""
        return (
            self._structure == other._structure
            and all(map(_is_same, self._values, other._values))
            and all(
                is_close(x, y, largest_of(x), EPSILON)
                for x, y in zip(self._buffers, other._buffers, strict=True)
            )
        )

    def decided_by_calls(self, before: ModuleChanges) -> bool:
        """Whether a call has changed numbers in Python, which may decide what later calls do.

        Args:
            before: what the module held before the call.
        """
        return self._structure != before._structure or any(
            isinstance(new, bool | int | float | str) and not _is_same(new, old)
            for new, old in zip(self._values, before._values, strict=True)
        )


def has_same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are the same without any rounding."""
    same = first.shape == second.shape and first.dtype == second.dtype
    return same and bool(torch.allclose(first, second, 0, 0, equal_nan=True))


def _kept(value: Any) -> Any:
    is_copied = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    return value.detach().clone() if is_copied else value


def _is_same(first: Any, second: Any) -> bool:
    if first is second or isinstance(first, weakref.ref):  # recurrent networks refer to weights
        return True
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return has_same_bits(first, second)
    return isinstance(first, bool | int | float | str) and bool(first == second)
