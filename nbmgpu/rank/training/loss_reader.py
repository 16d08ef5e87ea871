"""Reads how the losses of a backward pass reduce over samples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.rank.loss.autograd_nodes import leaf_tensors, reaches
from nbmgpu.rank.loss.graph_reader import AgreeOnDivisors, local_meanings, read_graph
from nbmgpu.rank.loss.loss_graph import LossGraph
from nbmgpu.rank.loss.readable_losses import ReadableLosses, find_readable_losses
from nbmgpu.rank.loss.size_inference import BatchSizeInference
from nbmgpu.rank.source_analysis.stack_frames import frame_outside

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.loss.loss_analysis import LossAnalysis
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo

    from .trained_objects import TrainedObjects

INTERNAL_PACKAGES = (
    "torch", "nbmgpu", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric",
)  # fmt: skip
"""Packages that may be on the stack between the cell's code and ``torch.autograd.backward``."""


class LossReader:
    """Reads the autograd graphs of losses, each for the rank's shard of the batch."""

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        trained: TrainedObjects,
        losses: LossAnalysis,
    ) -> None:
        """Read losses of ``trained``, at the step of ``progress``."""
        self._rank_info = rank_info
        self._progress = progress
        self._trained = trained
        self._losses = losses

    @property
    def has_part(self) -> bool:
        """Whether each rank has a part of one batch of the cell."""
        return self._rank_info.batch == "global" and self._progress.has_part

    def adds_up(self, graph: LossGraph) -> bool:
        """Return whether the loss of the global batch is the sum of the ranks' losses.

        With ``--batch per-rank`` each rank has a whole batch of the cell.  Their losses are
        averaged even if they are sums, as DistributedDataParallel does.
        """
        return graph.reduction == "sum" and self.has_part

    def read_roots(
        self, roots: list[Tensor], inputs: Any
    ) -> tuple[LossGraph, ReadableLosses | None]:
        """Return how the losses reduce, and which losses the cell may read afterwards.

        Args:
            roots: the tensors that ``backward`` is called on.
            inputs: the argument ``inputs`` of ``backward``.
        """
        collective = self._reaches_units(roots, inputs)
        agree = self._losses.divisors.agree
        if is_readable(roots):
            graph = self.read(roots, agree if collective else local_meanings)
            self._trained.options.check_loss(graph)
            variables = self._losses.state.take_returned() or _users_variables()
            found = find_readable_losses(roots[0], graph, variables) if len(roots) == 1 else None
            self._losses.diagnostics.note_reduction(graph)
            return graph, found
        if collective:  # other ranks may have a loss of one number, for a shard of one sample
            agree((), (), by_tensor=False)
        if any(root.numel() > 1 for root in roots):
            self._losses.diagnostics.check_vector()
        return LossGraph(), None

    def read(self, loss: Tensor | Sequence[Tensor], agree: AgreeOnDivisors) -> LossGraph:
        """Read the graph of one loss or several; ``agree`` decides what its divisors mean."""
        shard = self._progress.shard
        samples, whole = (shard.samples, shard.global_samples) if shard else (0, 0)
        sizes = self._losses.diagnostics.size_inference
        questions = BatchSizeInference(sizes, whole, self._rank_info.dp_size)
        counts = self._losses.state.global_counts
        is_old = self._losses.batch_dependence.predates_step
        return read_graph(loss, samples, whole, counts, agree, is_old, questions)

    def note_other_gradients(self, roots: list[Tensor]) -> None:
        """Note whether a pass gives gradients to tensors that no optimizer has, such as the batch.

        Parameters of a frozen model do not count: nobody reads their gradients.
        """
        diagnostics, step = self._losses.diagnostics, self._progress.step
        sampled = step & (step - 1) == 0  # all passes of the 1st, 2nd, 4th, 8th ... step
        if not sampled or diagnostics.has_other_gradients or not self.has_part:
            return
        diagnostics.has_other_gradients = any(
            not isinstance(leaf, torch.nn.Parameter) and id(leaf) not in self._trained.parameter_ids
            for leaf in leaf_tensors(root.grad_fn for root in roots)
        )

    def _reaches_units(self, roots: Sequence[Tensor], inputs: Any) -> bool:
        """Return whether a pass gives gradients to trained parameters, so that all ranks run it.

        A pass that ends at a batch (adversarial samples) or at another tensor is a rank's own:
        ranks may run different numbers of these, so it must not contain a collective.
        """
        if self._trained.weighs_losses:  # an engine has parameters of its own
            return True
        trained = self._trained.parameter_ids
        if inputs is not None:
            given = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            return any(id(each) in trained for each in given)
        return reaches([root.grad_fn for root in roots], trained)


def is_readable(roots: Sequence[Tensor]) -> bool:
    """Return whether all ``roots`` are losses of one element with a graph."""
    return all(root.numel() == 1 and root.grad_fn is not None for root in roots)


def _users_variables() -> dict[str, Any]:
    """Return the variables of the code that called ``backward()``."""
    frame = frame_outside(sys._getframe(1), INTERNAL_PACKAGES)
    return frame.f_locals if frame is not None else {}
