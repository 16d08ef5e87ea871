"""Checks whether one weight per rank can make the losses of a run equal those of one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.reporting.step_digest import StepDigestBuilder

from .one_sample import may_depend_on_sizes
from .size_inference import SizeInference

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder

    from .loss_graph import LossGraph
    from .loss_state import LossState

MAX_PENDING = 50
"""Checks whose results are fetched from a device at once."""


class LossDiagnostics:
    """Checks each loss, and notifies the user where ranks cannot reproduce one device.

    Attributes:
        digest: of the steps and reductions, for the comparison of ranks.
        size_inference: numbers in losses that equal sizes of the shard, perhaps by chance.
        has_ragged_samples: whether samples have different numbers of rows.
        has_other_gradients: whether a backward pass has reached tensors that no optimizer has.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        losses: LossState,
        recorder: Recorder,
    ) -> None:
        """Begin without a loss."""
        self._dp_size = rank_info.dp_size
        self._progress = progress
        self._losses = losses
        self._recorder = recorder
        self.begin_run()

    def begin_run(self) -> None:
        """Begin without a loss."""
        self.digest = StepDigestBuilder()
        self.size_inference = SizeInference()
        self.has_ragged_samples = False
        self.has_other_gradients = False
        self._pending: list[Any] = []
        self._has_had_several = False
        self._other_row_counts: dict[tuple[int, int], tuple[int, ...]] = {}

    def check(self, graph: LossGraph) -> None:
        """Check whether the loss of ``graph`` has a single weight per rank.

        The result may be on a device; results are fetched for many steps at once.
        """
        self.size_inference.add(graph)
        if graph.unknown_function:
            compiled = "Compiled" in graph.unknown_function
            text = notices.COMPILED_LOSS if compiled else notices.UNREAD_LOSS
            self._recorder.notice("unknown-loss", text.format(function=graph.unknown_function))
        if self.has_ragged_samples and graph.averages_other_rows and "mean" in graph.kinds:
            self._recorder.notice("concatenated-samples", notices.CONCATENATED_SAMPLES)
        mixed, shard = graph.needs_different_weights(), self._progress.shard
        if self.is_single and may_depend_on_sizes(graph, self.size_inference.code):
            self._recorder.notice("one-sample", notices.ONE_SAMPLE)
        reported = self._recorder.has_notice("two-loaders")  # explains the same difference
        if shard is not None and not shard.is_padding and not reported:
            uneven = not shard.is_even(self._dp_size)
            mixed = (uneven and graph.mixes_counts(shard.samples)) or mixed
            # A term with the same number of rows for any samples has the same weight on all ranks.
            if rows := graph.other_row_counts(shard.samples):
                key = shard.samples, len(graph.nodes)
                mixed = self._other_row_counts.setdefault(key, rows) != rows or mixed
        if mixed is not False:
            self._pending.append(mixed)
        if len(self._pending) >= MAX_PENDING:
            self.flush()

    def note_shard(self) -> None:
        """Note the size of the shard that a backward pass is for."""
        shard = self._progress.shard
        self._has_had_several |= shard is not None and not shard.is_single(self._dp_size)

    @property
    def is_single(self) -> bool:
        """Whether no rank has more than one sample, nor had in an earlier batch.

        Larger shards have told by then what the numbers in a loss mean.
        """
        return self._progress.shard is not None and not self._has_had_several

    def flush(self) -> None:
        """Fetch the pending results of ``check``."""
        pending, self._pending = self._pending, []
        if any(bool(mixed) for mixed in pending):
            self._recorder.notice("mixed-loss", notices.MIXED_LOSS)

    def note_reduction(self, graph: LossGraph) -> None:
        """Add how a loss reduces to the digest.

        A shard of one sample or none may show another reduction than larger ones; so may numbers
        that equal sizes by chance.
        """
        shard = self._progress.shard
        self._losses.is_sum = graph.reduction == "sum"
        if shard is None or not shard.is_partial:
            return
        smaller = shard.samples == 1 and not shard.is_single(self._dp_size)
        ambiguous = shard.is_padding or smaller or bool(graph.divisions.numbers)
        self.digest.add_reduction(graph.reduction, known=not ambiguous)

    def check_vector(self) -> None:
        """Notify the user that a backward pass begins at several elements."""
        if self._progress.has_part:
            self._recorder.notice("vector-loss", notices.VECTOR_LOSS)

    def check_repeated_step(self, optimizer: Optimizer) -> None:
        """Notify the user if an optimizer steps again on one batch and ranks may differ in it.

        Only for batches that were not taken by a ``for`` loop.
        """
        progress = self._progress
        shard = progress.shard
        iterates_manually = getattr(progress.loader, "iterates_manually", False)
        again = id(optimizer) in progress.stepped
        progress.stepped.add(id(optimizer))
        if not again or not iterates_manually or shard is None or not shard.is_partial:
            return
        if self._losses.is_sum or not shard.is_even(self._dp_size):
            self._recorder.notice("repeated-batch", notices.REPEATED_BATCH)
