"""The gradients of one stage's parameters during a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .stage_param import StageParamState


class StageGrads:
    """Sums gradients over microbatches, and reduces them over the ranks that shard the stage."""

    def __init__(self, states: Sequence[StageParamState]) -> None:
        """Start without gradients of the parameters with ``states``."""
        self._states = states
        self._grads: dict[nn.Parameter, Tensor] = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the stage computes with."""
        return [state.unsharded for state in self._states]

    @contextmanager
    def accumulated(self) -> Iterator[None]:
        """Add gradients as they arrive.

        Otherwise those of a whole stage and microbatch would be held beside their sum.  What
        ``torch.autograd.grad`` returns instead has no memory.
        """
        hooks = [parameter.register_hook(self._add_to(parameter)) for parameter in self.parameters]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _add_to(self, parameter: nn.Parameter) -> Callable[[Tensor], Tensor]:
        def accumulate(grad: Tensor) -> Tensor:
            before = self._grads.get(parameter)
            self._grads[parameter] = grad.clone() if before is None else before.add_(grad)
            return grad.new_zeros(()).expand(grad.shape)

        return accumulate

    def reduced(self) -> dict[StageParamState, Tensor]:
        """Return the gradients of this rank's parts, where any rank of the stage has one.

        Collective over ``fsdp`` and ``dp``: other samples may not reach a parameter.
        """
        sharded = [state for state in self._states if state.rows is not None]
        has_grad = {state: state.unsharded in self._grads for state in self._states}
        if sharded:
            groups = sharded[0].groups
            flags = torch.tensor([has_grad[state] for state in sharded]).int()
            for group in filter(None, (groups.fsdp, groups.dp)):
                dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
            has_grad |= dict(zip(sharded, flags.bool().tolist(), strict=True))
        found = {}
        for state in self._states:
            grad = self._grads.pop(state.unsharded, None)
            if has_grad[state]:
                grad = torch.zeros_like(state.unsharded) if grad is None else grad
                found[state] = state.reduce_grad(grad)
        return found
