"""Every backward pass of the cell goes through here.

``torch.autograd.backward`` is what ``loss.backward()``, ``scaler.scale(loss)
.backward()`` and ``accelerator.backward(loss)`` all call in the end.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.patches import PatchStack
from nbmgpu.rank.loss.autograd_nodes import leaf_tensors, reaches
from nbmgpu.rank.loss.divisors import Divisor, Meaning
from nbmgpu.rank.loss.graph_reader import AgreeOnDivisors, local_meanings, read_graph
from nbmgpu.rank.loss.loss_graph import LossGraph
from nbmgpu.rank.loss.loss_weights import all_reduce_losses
from nbmgpu.rank.loss.readable_losses import ReadableLosses, find_readable_losses
from nbmgpu.rank.loss.size_inference import BatchSizeInference
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.source_analysis.stack_frames import frame_outside
from nbmgpu.strategies.base import Backward
from nbmgpu.strategies.reduction_extras import MAX_LOSSES
from nbmgpu.strategies.scalars import as_scalar

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.session import Session

BETWEEN = (
    "torch", "nbmgpu", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric",
)  # fmt: skip
"""Packages that may lie between the code that has a loss and ``torch.autograd.backward``."""


class BackwardTap:
    """Wraps ``torch.autograd.backward``: weighs shares, lets the strategy reduce, logs the loss."""

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
                with self.session.batch_dependence.paused():
                    self._backward(tensors, grad_tensors, options)
            except BaseException:
                self.session.begun -= 1  # it comes to no end for which others could wait
                raise
            finally:
                self.inside = False

        PatchStack().replace("torch.autograd.backward", backward)

    def _backward(self, tensors: Any, grad_tensors: Any, options: dict[str, Any]) -> None:
        """Read how the losses count samples, plan what gradients count for, let autograd run."""
        session = self.session
        self._meet_others()
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        readable = all(root.numel() == 1 and root.grad_fn is not None for root in roots)
        graph, losses = self._read_roots(roots, readable, options["inputs"])
        self._look_for_others(roots)
        share = session.share
        even = share is not None and share.is_even(session.dp_size)
        session.batch_dependence.check_losses(roots, graph, even)
        plan = self._plan(graph, self._settle(losses, options))
        factor: Any = self._factor_of_sum() if readable and self._adds_up(graph) else 1.0
        session.accumulation.check(session.units)
        if session.weighs_losses:
            factor, plan = self._weigh(plan, roots[0], factor, graph.reduction == "sum")
            factor = factor * session.strategy.loss_scale()
        scale = session.shaping.scale
        scale.begin(session.units)
        seeds = _times(factor * scale.value, roots, grad_tensors)
        self._run(plan, tensors, seeds, options)
        scale.end(session.units)
        session.accumulation.settle(session.units)
        session.note_backward(losses)

    def _meet_others(self) -> None:
        """Do what comes before all else: ranks may wait for one another here, or stop together."""
        session = self.session
        session.begun += 1
        session.strategy.check_backward()
        session.budget.before_backward(session)
        session.pace.begin_backward()
        session.activate()
        if session.interrupts is not None:
            session.interrupts.agree()
        session.batch_in_use.begin_backward()

    def _read_roots(
        self, roots: list[Tensor], readable: bool, inputs: Any
    ) -> tuple[LossGraph, ReadableLosses | None]:
        """Return how the losses count samples, and which losses the cell may read afterwards."""
        session = self.session
        of_all = self._reaches_units(roots, inputs)
        if readable:
            graph = self._read(roots, session.agree_on_divisors if of_all else local_meanings)
            session.shaping.check_loss(graph)
            held, session.held_losses = session.held_losses, {}
            variables = held or _users_variables()
            found = find_readable_losses(roots[0], graph, variables) if len(roots) == 1 else None
            session.note_loss(graph)
            return graph, found
        if of_all:  # a share of one sample may give other ranks one number
            session.agree_on_divisors((), (), counts=False)
        if any(root.numel() > 1 for root in roots):
            session.doubt_vector()
        return LossGraph(), None

    def _look_for_others(self, roots: list[Tensor]) -> None:
        """See whether a pass gives gradients to what no optimizer has, such as the batch itself.

        Not to parameters of a model that rests: nobody reads theirs.
        """
        session, step = self.session, self.session.step
        watched = step & (step - 1) == 0  # all passes of the 1st, 2nd, 4th, 8th ... step
        if not watched or session.own_gradients or not self._has_part():
            return
        session.own_gradients = any(
            not isinstance(leaf, torch.nn.Parameter) and id(leaf) not in session.trained
            for leaf in leaf_tensors(root.grad_fn for root in roots)
        )

    def _settle(self, losses: ReadableLosses | None, options: dict[str, Any]) -> list[Tensor]:
        """Return the losses that shall be those of the global batch after the pass."""
        # A graph that is kept may have saved its losses: they must not change under it.
        again = options["retain_graph"] or options["create_graph"]
        settled = losses.tensors if losses and not again else []
        self.session.settled += [weakref.ref(loss) for loss in settled]
        self.session.batch_dependence.mark_as_global(settled[:MAX_LOSSES])
        return settled

    def _run(self, plan: Backward, tensors: Any, seeds: Any, options: dict[str, Any]) -> None:
        """Let autograd run, from the gradients ``seeds``, and the strategy reduce by ``plan``."""
        session = self.session
        session.strategy.begin_backward(plan)
        if (inputs := options["inputs"]) is not None:
            given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            options["inputs"] = session.strategy.backward_inputs(given)
        self.original(tensors, seeds, **options)
        session.strategy.end_backward(plan)
        if not session.strategy.reached_parameters:  # what a rank did alone, others need not do
            session.begun -= 1

    def _read(self, loss: Tensor | Sequence[Tensor], agree: AgreeOnDivisors) -> LossGraph:
        session, share = self.session, self.session.share
        sizes = (share.samples, share.global_samples) if share else (0, 0)
        questions = BatchSizeInference(session.chances, sizes[1], session.dp_size)
        return read_graph(
            loss, *sizes, session.totals, agree, session.batch_dependence.predates_step, questions
        )

    def _reaches_units(self, roots: Sequence[Tensor], inputs: Any) -> bool:
        """Tell whether a pass gives gradients to what is trained, and so is one of all ranks.

        One that ends at a batch (adversarial samples) or at a tensor that is looked for is a rank's
        own: ranks may do different numbers of these, so no collective may stand in them.
        """
        if self.session.weighs_losses:  # for an engine, which has parameters of its own
            return True
        trained = self.session.trained
        if inputs is not None:
            given = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            return any(id(each) in trained for each in given)
        return reaches([root.grad_fn for root in roots], trained)

    def _plan(self, graph: LossGraph, scalars: list[Tensor]) -> Backward:
        session = self.session
        share, even = session.share, 1.0 / session.dp_size
        totals = self._which_add_up(graph, scalars)
        if share is None:
            return Backward(even, normalized=True, scalars=scalars, summed=totals)
        counts = as_scalar(graph.counts[0][0]) / share.global_samples if graph.counts else None
        if graph.reduction == "sum" and (session.batch == "per-rank" or session.accumulation.on):
            session.recorder.notice("summed-loss", notices.SUMMED_LOSS)
        if not share.is_partial:  # one rank has it all, or every rank has
            counted = counts if session.accumulation.on and not share.is_padding else None
            return Backward(
                share.weight if counted is None else counted,
                normalized=False,
                scalars=scalars,
                summed=totals,
            )
        session.doubt(graph)
        if graph.has_penalty and self._adds_up(graph):
            session.recorder.notice("summed-penalty", notices.SUMMED_PENALTY)
        if graph.reduction == "sum":
            stands_in = share.is_padding and not any(totals)
            return Backward(
                0.0 if stands_in else even, normalized=True, scalars=scalars, summed=totals
            )
        # Never taken for normalized: what a rank reads of its loss must not decide what it does.
        weight = share.weight if counts is None or share.is_padding else counts
        return Backward(weight, normalized=False, scalars=scalars, summed=totals)

    def _adds_up(self, graph: LossGraph) -> bool:
        """Tell whether the loss of the whole batch is the sum of the ranks' losses.

        With a batch per rank it is a batch of the cell that each rank has: these are
        averaged, also if their losses are sums, as DistributedDataParallel does.
        """
        return graph.reduction == "sum" and self._has_part()

    def _which_add_up(self, graph: LossGraph, scalars: list[Tensor]) -> list[bool]:
        """Tell of each of ``scalars``, the root first, whether ranks' values add up.

        Parts may reduce in other ways than the root does, as the sum of ``loss_sum / len(x)``.
        Whether numbers in them are sizes, ranks have agreed on with the root.
        """
        root, count = self._adds_up(graph), len(scalars)
        alike = (
            not graph.divisions.exist
            and (root or "sum" not in graph.kinds)
            and not graph.has_penalty
        )
        if alike or count < 2 or not self._has_part():
            return [root] * count
        sizes = any(size is not None for size in graph.divisions.sizes)
        counts = len(graph.divisions.sizes) < len(graph.divisions.numbers)

        def agreed(kinds: tuple[str, ...], divisors: list[Divisor], counted: bool) -> list[Meaning]:
            other: Meaning = "count" if counts else "constant"
            return ["size" if d.shard_size is not None and sizes else other for d in divisors]

        return [root, *(self._adds_up(self._read(part, agreed)) for part in scalars[1:])]

    def _has_part(self) -> bool:
        """Tell whether each rank has a part of a batch of the cell."""
        share = self.session.share
        return self.session.batch == "global" and share is not None and share.is_partial

    def _factor_of_sum(self) -> float:
        """Return what a summed loss is multiplied by so that the ranks' average is the sum."""
        share, dp_size = self.session.share, self.session.dp_size
        return 0.0 if share is not None and share.is_padding else float(dp_size)

    def _weigh(self, plan: Backward, like: Tensor, factor: Any, sums: bool) -> tuple[Any, Backward]:
        """Weigh the loss beforehand, so that the plain average over ranks is the gradient.

        Args:
            plan: how the ranks' losses combine.
            like: a tensor on the loss's device.
            factor: what a summed loss is multiplied by, else 1.
            sums: whether the loss is a sum, so that a group of batches averages their sums.

        Returns:
            The factor for the gradient that starts the pass, and what is left to do.
        """
        session, share = self.session, self.session.share
        total = all_reduce_losses(plan, like, session.dp_group)
        if factor == 1.0:
            weighed = plan.weight * session.dp_size / total
            factor = torch.where(total != 0, weighed, 0.0)
        samples = 1.0 if sums or share is None else float(share.global_samples)
        group = session.accumulation.weigh(total * samples, samples)
        return factor * group, Backward(
            1.0 / session.dp_size, normalized=True, is_last=session.accumulation.closes
        )


def _times(factor: Any, roots: Sequence[Tensor], given: Any) -> Any:
    """Return the gradients that start a pass, multiplied by ``factor``; None for plain ones."""
    if isinstance(factor, float) and factor == 1.0:
        return given
    seeds = list(given) if isinstance(given, tuple | list) else [given] * len(roots)
    for place, root in enumerate(roots):
        if seeds[place] is None and root.numel() == 1:  # else autograd says what is missing
            seeds[place] = torch.ones_like(root)
    return [None if seed is None else (seed * factor).to(seed.dtype) for seed in seeds]


def _users_variables() -> dict[str, Any]:
    """Return the variables of the code that called ``backward()``."""
    frame = frame_outside(sys._getframe(1), BETWEEN)
    return frame.f_locals if frame is not None else {}
