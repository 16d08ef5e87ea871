"""The patch of ``torch.autograd.backward``, which every backward pass of the cell calls.

``loss.backward()``, ``scaler.scale(loss).backward()`` and ``accelerator.backward(loss)`` all call
it in the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices
from nbmgpu.strategies.reduction_extras import MAX_LOSSES

from .loss_reader import LossReader, is_readable
from .reduction_plan import ReductionPlanner

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.loss.loss_analysis import LossAnalysis
    from nbmgpu.rank.loss.readable_losses import ReadableLosses
    from nbmgpu.rank.metrics.step_metrics import StepMetrics
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.strategies.base import Backward

    from .gradient_accumulation import GradientAccumulation
    from .trained_objects import TrainedObjects


class BackwardPatch:
    """Weights the losses or gradients of every backward pass, and lets the strategy reduce them."""

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        trained: TrainedObjects,
        accumulation: GradientAccumulation,
        losses: LossAnalysis,
        metrics: StepMetrics,
        recorder: Recorder,
        before: Sequence[Callable[[], None]],
    ) -> None:
        """Call each of ``before`` when a backward pass begins, where ranks may wait for others."""
        self._rank_info = rank_info
        self._progress = progress
        self._trained = trained
        self._accumulation = accumulation
        self._losses = losses
        self._metrics = metrics
        self._recorder = recorder
        self._before = before
        self._reader = LossReader(rank_info, progress, trained, losses)
        self._planner = ReductionPlanner(
            rank_info, progress, accumulation, self._reader, losses.diagnostics, recorder
        )
        self._original: Callable[..., None] = torch.autograd.backward
        self._inside = False

    def install(self) -> None:
        """Install the patch for the rest of this process."""

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
            if self._inside:
                self._original(tensors, grad_tensors, **options)
                return
            self._inside = True
            try:
                with self._losses.batch_dependence.paused():
                    self._backward(tensors, grad_tensors, options)
            except BaseException:
                self._progress.backwards_begun -= 1  # no other rank may wait for its end
                raise
            finally:
                self._inside = False

        PatchStack().replace("torch.autograd.backward", backward)

    def _backward(self, tensors: Any, grad_tensors: Any, options: dict[str, Any]) -> None:
        """Read how the losses reduce, plan the reduction of gradients, and run autograd."""
        self._progress.backwards_begun += 1
        self._trained.strategy.check_backward()
        for prepare in self._before:
            prepare()
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        graph, losses = self._reader.read_roots(roots, options["inputs"])
        self._reader.note_other_gradients(roots)
        shard = self._progress.shard
        even = shard is not None and shard.is_even(self._rank_info.dp_size)
        self._losses.diagnostics.note_shard()
        single = self._losses.diagnostics.is_single
        self._losses.batch_dependence.check_losses(roots, graph, even, single)
        plan = self._planner.plan(graph, self._reduced_losses(losses, options))
        factor: Any = self._planner.loss_factor(graph) if is_readable(roots) else 1.0
        units = self._trained.units
        self._accumulation.check(units)
        if self._trained.weighs_losses:
            is_sum = graph.reduction == "sum"
            factor, plan = self._planner.weigh_loss(plan, roots[0], factor, is_sum)
            factor = factor * self._trained.strategy.loss_scale()
        scale = self._trained.options.loss_scale
        scale.begin(units)
        seeds = _times(factor * scale.value, roots, grad_tensors)
        self.run(plan, tensors, seeds, options)
        scale.end(units)
        self._accumulation.rescale(units)
        self._finish(losses)

    def _reduced_losses(
        self, losses: ReadableLosses | None, options: dict[str, Any]
    ) -> list[Tensor]:
        """Return the losses that get the value of the global batch in the pass."""
        # A graph that is kept may have saved its losses: they must not change under it.
        again = options["retain_graph"] or options["create_graph"]
        reduced = losses.tensors if losses and not again else []
        self._losses.state.reduced += [weakref.ref(loss) for loss in reduced]
        self._losses.batch_dependence.mark_as_global(reduced[:MAX_LOSSES])
        return reduced

    def run(self, plan: Backward, tensors: Any, seeds: Any, options: dict[str, Any]) -> None:
        """Run autograd from the gradients ``seeds``; the strategy reduces as in ``plan``."""
        strategy = self._trained.strategy
        plan.keeps_graph = bool(options["retain_graph"] or options["create_graph"])
        strategy.begin_backward(plan)
        if (inputs := options["inputs"]) is not None:
            given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            options["inputs"] = strategy.backward_inputs(given)
        self._original(tensors, seeds, **options)
        strategy.end_backward(plan)
        if not strategy.reached_parameters:  # other ranks need not have done the same
            self._progress.backwards_begun -= 1

    def _finish(self, losses: ReadableLosses | None) -> None:
        """Count the pass, and record its loss."""
        progress = self._progress
        first = progress.backwards == 0 and self._rank_info.shards_data
        if first and self._trained.has_user_hooks():
            self._recorder.notice("tensor-hooks", notices.TENSOR_HOOKS)
        progress.backwards += 1
        if progress.shard is None:
            progress.step += 1
        else:
            self._losses.diagnostics.digest.add_step(progress.step)
        progress.trained_step = progress.step
        self._metrics.timer.end_backward(progress.step)
        if losses is not None and self._losses.state.are_recorded:
            self._metrics.record_loss(losses)


def _times(factor: Any, roots: Sequence[Tensor], given: Any) -> Any:
    """Return the gradients that start a pass, multiplied by ``factor``; None for plain ones."""
    if isinstance(factor, float) and factor == 1.0:
        return given
    seeds = list(given) if isinstance(given, tuple | list) else [given] * len(roots)
    for index, root in enumerate(roots):
        if seeds[index] is None and root.numel() == 1:  # else autograd reports what is missing
            seeds[index] = torch.ones_like(root)
    return [None if seed is None else (seed * factor).to(seed.dtype) for seed in seeds]
