"""What a call of a module computes, to compare two ways to run it in a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outputs of a call, and gradients.

    Attributes:
        outputs: the leaves of its output.
        grads: gradients of its inputs, for one gradient of the outputs.
        spec: structure of the output.
    """

    outputs: list[Any]
    grads: list[Tensor | None]
    spec: Any

    @staticmethod
    def of(outputs: list[Any], spec: Any, inputs: Sequence[Tensor]) -> Outcome:
        """Return the outcome; gradients of outputs are arbitrary, and the same each time.

        Args:
            outputs, spec: the output.
            inputs: arguments and parameters that may require gradients.
        """
        inputs = [x for x in inputs if x.requires_grad]
        tensors = [x for x in outputs if isinstance(x, Tensor) and x.requires_grad]
        if not tensors or not inputs:
            return Outcome(outputs, [], spec)
        generator = torch.Generator().manual_seed(0)
        grads = [
            torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x.device, x.dtype)
            for x in tensors
        ]
        found = torch.autograd.grad(tensors, inputs, grads, allow_unused=True)
        return Outcome(outputs, list(found), spec)

    def is_finite(self) -> bool:
        """Whether all numbers in it are finite."""
        return all(
            math.isfinite(float(x.detach().abs().max()))
            for x in (*self.outputs, *self.grads)
            if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
        )

    def is_that_of(self, other: Outcome, epsilon: float | None = None) -> bool:
        """Whether outputs and gradients are equal but for the rounding of sums.

        Args:
            other: what they are compared with.
            epsilon: relative rounding of one number; None for that of each tensor's dtype.
        """
        mine, theirs = (self.outputs, self.grads), (other.outputs, other.grads)
        if self.spec != other.spec or [*map(len, mine)] != [*map(len, theirs)]:
            return False
        # A gradient that is zero but for rounding, such as of the bias of keys, differs.
        largest = max((largest_of(grad) for grad in self.grads), default=0.0)
        return all(
            is_close(x, y, largest_of(x), epsilon)
            for x, y in zip(self.outputs, other.outputs, strict=True)
        ) and all(
            is_close(x, y, largest, epsilon) for x, y in zip(self.grads, other.grads, strict=True)
        )


def detached_copy(leaf: Any) -> Any:
    """Return a copy of a tensor without its graph, and any other value unchanged."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def without_graph(leaf: Any) -> Any:
    """Return a tensor that shares memory and version with ``leaf``, and has no graph."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.requires_grad)


def versions_of(values: Iterable[Any]) -> list[int]:
    """Return how often each tensor among ``values`` was written to; 0 for inference tensors."""
    tensors = (value for value in values if isinstance(value, Tensor))
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def largest_of(value: Any) -> float:
    """Return the largest finite magnitude in a floating point tensor; 0 for any other value."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return 0.0
    return float(value.detach().abs().nan_to_num(0.0, 0.0, 0.0).max())


def is_close(first: Any, second: Any, largest: float, epsilon: float | None = None) -> bool:
    """Whether two values are equal but for the rounding of sums of terms up to ``largest``."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return bool(first is None and second is None) or bool(first == second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    epsilon = torch.finfo(first.dtype).eps if epsilon is None else epsilon
    return torch.allclose(first, second, 1e3 * epsilon, 1e2 * epsilon * largest, equal_nan=True)
