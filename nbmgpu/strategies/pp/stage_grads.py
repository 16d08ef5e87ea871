"""The gradients of one stage's parameters during a backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .stage_param import StageParamState


class StageGrads:
    """Sums gradients over microbatches, and reduces them over the ranks that shard the stage."""

    def __init__(self, states: Sequence[StageParamState]) -> None:
        """Start without gradients of the parameters with ``states``."""
        self._states = states
        for parameter in self.parameters:
            parameter.grad = None  # of a backward pass that has failed

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the stage computes with."""
        return [state.unsharded for state in self._states]

    def add(
        self,
        ends: Sequence[Tensor],
        seeds: Sequence[Tensor],
        starts: Sequence[Tensor],
        keeps_graph: bool,
    ) -> list[Tensor | None]:
        """Run the backward pass of a microbatch, and add its gradients.

        Autograd adds each as it arrives, and keeps the first instead of a copy: with
        ``torch.autograd.grad`` those of a whole stage and microbatch are held beside their sum.

        Args:
            ends: outputs of the stage.
            seeds: their gradients.
            starts: inputs of the stage.
            keeps_graph: whether another backward pass may follow.

        Returns:
            The gradients of ``starts``.
        """
        wanted = [*starts, *self.parameters]
        if ends and wanted:
            # Not ``torch.autograd.backward``: calls of it are backward passes of the cell.
            torch.autograd.Variable._execution_engine.run_backward(
                tuple(ends), tuple(seeds), keeps_graph, False, tuple(wanted),
                allow_unreachable=True, accumulate_grad=True,
            )  # fmt: skip
        found = [start.grad for start in starts]
        for start in starts:
            start.grad = None
        return found

    def reduced(self) -> dict[StageParamState, Tensor]:
        """Return the gradients of this rank's parts, where any rank of the stage has one.

        Collective over ``fsdp`` and ``dp``: other samples may not reach a parameter.
        """
        sharded = [state for state in self._states if state.rows is not None]
        has_grad = {state: state.unsharded.grad is not None for state in self._states}
        if sharded:
            groups = sharded[0].groups
            flags = torch.tensor([has_grad[state] for state in sharded]).int()
            for group in filter(None, (groups.fsdp, groups.dp)):
                dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
            has_grad |= dict(zip(sharded, flags.bool().tolist(), strict=True))
        found = {}
        for state in self._states:
            grad, state.unsharded.grad = state.unsharded.grad, None
            if has_grad[state]:
                grad = torch.zeros_like(state.unsharded) if grad is None else grad
                found[state] = state.reduce_grad(grad)
        return found
