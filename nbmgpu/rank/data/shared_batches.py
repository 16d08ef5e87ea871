"""Divides batches that the cell makes itself among the ranks: ``nbmgpu.share``."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import torch

from nbmgpu.errors import OptionError, format_message
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.draw_detector import DrawDetector
from nbmgpu.rank.rng.generators import reachable_generators
from nbmgpu.rank.source_analysis.stack_frames import LIBRARIES, frame_outside
from nbmgpu.rank.source_analysis.step_variables import step_variables
from nbmgpu.rank.source_analysis.training_loops import loop_trains
from nbmgpu.rank.source_analysis.whole_batch_use import loop_uses_whole_batch
from nbmgpu.strategies.outcome import versions_of

from .batch_split import min_samples_of_remainder, split_batch
from .last_batch import LastBatch

if TYPE_CHECKING:
    from torch import Tensor

    from .batch_shard import BatchShard
    from .loader_context import LoaderContext
    from .loader_patch import LoaderPatch

PER_RANK = (
    "nbmgpu.share divides a batch among the ranks, and --batch per-rank gives each rank a batch of "
    "its own"
)
ACCUMULATED = (
    "--accumulate {size} needs a DataLoader, which knows its last batch; nbmgpu.share gets one "
    "batch at a time"
)


class SharedBatches:
    """The batches of ``nbmgpu.share``, each of them a pass of one step.

    Random numbers that the cell draws between two batches, such as the indices of the next one,
    come from the notebook's stream, and those that it draws in a step from the rank's own.

    Attributes:
        iterates_manually: False, as for loaders that a ``for`` statement iterates over.
    """

    iterates_manually = False

    def __init__(self, context: LoaderContext, loaders: LoaderPatch) -> None:
        """Divide batches; ``loaders`` decides whether the loop trains."""
        self._context = context
        self._loaders = loaders
        self._began = False
        self._trains: dict[tuple[CodeType, int] | None, bool] = {}
        self._largest = 0  # batch so far: a smaller one may be the incomplete last one

    def iterate(
        self, batch: tuple[Tensor, ...], dim: int, frame: FrameType | None
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the rank's part of ``batch`` along ``dim``, once, for the loop in ``frame``.

        Where nothing is divided (in an evaluation, with whole batches, in a loop over a loader that
        is divided already), the batch is yielded as it is.

        Raises:
            OptionError: the options of the run have no such batches.
        """
        self._check_options()
        nested = self._context.steps.progress.has_part
        if nested or not self._loaders.may_train() or not self._loop_trains(frame):
            return iter((batch,))
        return self._pass(batch, dim, frame)

    def _loop_trains(self, frame: FrameType | None) -> bool:
        """Return whether the loop in ``frame`` trains; its source is analyzed once."""
        frame = frame_outside(frame, LIBRARIES)
        key = None if frame is None else (frame.f_code, frame.f_lineno)
        if key not in self._trains:
            self._trains[key] = bool(loop_trains(frame))
            if self._trains[key]:
                self._loaders.note_sizes(frame)
                if self._context.rank_info.splits_batches and loop_uses_whole_batch(frame):
                    self._context.recorder.notice("whole-batch-used", notices.WHOLE_BATCH_USED)
        return self._trains[key]

    def _pass(
        self, batch: tuple[Tensor, ...], dim: int, frame: FrameType | None
    ) -> Iterator[tuple[Tensor, ...]]:
        context, steps = self._context, self._context.steps
        progress, streams, losses = steps.progress, context.streams, context.losses
        if not self._began:
            streams.sync_from_rank_0()
            losses.divisors.divisors.restart()
        part, shard = self._split(batch[0].shape[dim])
        # Samples are followed along the first dimension, and through views of it.
        rows = tuple(tensor.movedim(dim, 0)[part] for tensor in batch)
        before, enclosing = progress.backwards, progress.begin_pass(self)
        own = reachable_generators(frame, excluded=context.sampler_generators)
        streams.enter_step(self, torch.initial_seed(), resume=True)
        self._began = True
        progress.sharded_passes += 1
        context.note_batch_norm()
        draws, versions, is_over = DrawDetector(own), versions_of(batch), False
        try:
            steps.queue_batch(self, rows, shard, last=False)
            if shard.is_partial and not shard.is_padding:
                losses.batch_dependence.add_batch(rows, shard.samples, shard.global_samples)
            parts = tuple(each.movedim(0, dim) for each in rows)
            losses.batch_dependence.step_values.begin_pass(self, step_variables(frame).bound)
            steps.last_batches.add(self, LastBatch(parts, shard, dim))
            yield parts
            is_over = True
        finally:
            context.note_draws(draws)
            if shard.is_partial and versions_of(batch) != versions:
                text = notices.LOCAL_VALUES_WRITTEN.format(where="The step")
                context.recorder.notice("local-values-written", text)
            streams.leave_step(self)
            # The samples are followed on: what comes after the loop belongs to the step.
            steps.queue_end(self, enclosing, before if is_over else None)

    def _split(self, samples: int) -> tuple[slice, BatchShard]:
        """Return the rows of this rank of a batch of ``samples``, and its shard."""
        info = self._context.rank_info
        self._largest = max(self._largest, samples)
        fewest = min_samples_of_remainder(samples, self._largest, info.dp_size)
        least = max(self._context.trained.min_samples(), fewest)
        return split_batch(samples, info.dp_rank, info.dp_size, least)

    def _check_options(self) -> None:
        info, accumulation = self._context.rank_info, self._context.steps.accumulation
        if info.shards_data and info.batch == "per-rank":
            raise OptionError(format_message(PER_RANK, instead="--batch global"))
        if accumulation.on:
            what = ACCUMULATED.format(size=accumulation.size)
            raise OptionError(format_message(what, instead="accumulating in the cell itself"))
