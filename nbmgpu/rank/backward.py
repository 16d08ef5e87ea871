"""Every backward pass of the cell goes through here.

``torch.autograd.backward`` is what ``loss.backward()``, ``scaler.scale(loss)
.backward()`` and ``accelerator.backward(loss)`` all call in the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.strategies.base import Backward

from .losses import LossGraph, find_losses, read_graph

if TYPE_CHECKING:
    from torch import Tensor

    from .session import Session


class BackwardTap:
    """Wraps ``torch.autograd.backward``: weighs slices, lets the strategy reduce, logs the loss."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``."""
        self.session = session
        self.original: Callable[..., None] = torch.autograd.backward
        self.inside = False

    def install(self) -> None:
        """Put the tap in place, for the rest of this process."""

        def backward(
            tensors: Tensor | Sequence[Tensor],
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            options = {"retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs}
            if grad_variables is not None:
                options["grad_variables"] = grad_variables
            # A reentrant checkpoint calls backward inside backward, from another thread
            # on a GPU; only the outermost one is a step.
            if self.inside:
                self.original(tensors, grad_tensors, **options)
                return
            self.inside = True
            try:
                self._backward(tensors, grad_tensors, options)
            finally:
                self.inside = False

        torch.autograd.backward = backward  # type: ignore[assignment]

    def _backward(self, tensors: Any, grad_tensors: Any, options: dict[str, Any]) -> None:
        session = self.session
        session.activate()
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        loss = roots[0] if len(roots) == 1 and roots[0].numel() == 1 else None
        graph, losses = LossGraph(), None
        if loss is not None and loss.grad_fn is not None:
            share = session.share
            graph = read_graph(loss, *((share.samples, share.whole) if share else (0, 0)))
            losses = find_losses(loss, graph, _users_variables())
        # A graph that is kept may have saved its losses: they must not change under it.
        again = options["retain_graph"] or options["create_graph"]
        plan = self._plan(graph, losses.all if losses and not again else [])
        if loss is not None and self._adds_up(graph):
            grad_tensors = self._seed_of_sum(loss, grad_tensors)
        session.strategy.begin_backward(plan)
        self.original(tensors, grad_tensors, **options)
        session.strategy.end_backward(plan)
        session.note_backward(losses)

    def _plan(self, graph: LossGraph, scalars: list[Tensor]) -> Backward:
        session = self.session
        share, even = session.share, 1.0 / session.world_size
        totals = [self._adds_up(graph)] * len(scalars)
        if share is None or not session.distributes:
            return Backward(even, True, scalars, totals)
        if share.samples == share.whole:  # one rank has it all, or every rank has
            return Backward(share.weight, False, scalars, totals)
        session.doubt(graph)
        if self._adds_up(graph):
            return Backward(even, True, scalars, totals)
        if not graph.counts:
            return Backward(share.weight, True, scalars, totals)
        if share.empty:
            return Backward(0.0, False, scalars, totals)
        return Backward(graph.counts[0][0].detach() / share.whole, False, scalars, totals)

    def _adds_up(self, graph: LossGraph) -> bool:
        """Tell whether the loss of the whole batch is the sum of the ranks' losses."""
        share = self.session.share
        divided = share is not None and share.samples < share.whole
        return divided and graph.reduction == "sum"

    def _seed_of_sum(self, loss: Tensor, grad_tensors: Any) -> Any:
        """Return the gradient to start from so that the ranks' average is the sum."""
        share, world_size = self.session.share, self.session.world_size
        factor = 0.0 if share is not None and share.empty else float(world_size)
        given = grad_tensors[0] if isinstance(grad_tensors, tuple | list) else grad_tensors
        seed = torch.ones_like(loss) if given is None else given
        return seed * factor


def _users_variables() -> dict[str, Any]:
    """Return the variables of the code that called ``backward()``."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in ("torch", "nbmgpu", "accelerate"):
            return frame.f_locals
        frame = frame.f_back
    return {}
