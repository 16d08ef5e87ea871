"""Iterates over a DataLoader of a training loop: each rank gets its shard of every global batch.

The batch size in the user's code stays the *global* batch size.  All ranks run the user's sampler
with the random numbers that one device would draw, and load only the samples of their own shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from nbmgpu.rank.metrics.step_time import tokens_in
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.draw_detector import DrawDetector
from nbmgpu.rank.rng.generators import reachable_generators
from nbmgpu.rank.source_analysis.step_variables import step_variables
from nbmgpu.rank.source_analysis.training_loops import loop_trains

from .batch_sampling import repeat_forever, uses_torch_sampler
from .batch_shard import BatchShard
from .batch_split import adjust_to_collated, count_rows, min_samples_of_remainder
from .collated_shapes import CollatedShapes
from .shard_reader import IndexedShardReader, StreamShardReader

if TYPE_CHECKING:
    from .loader_context import LoaderContext

STEPS_CHECKED = 3
"""Backward passes up to which random draws are reported at once, later ones after the pass."""


class ShardedLoader:
    """A user's loader as one rank sees it.

    It lives as long as the loader, because workers may be persistent, and holds no reference to it.

    Attributes:
        epoch: passes begun so far.
        is_zipped: whether the loop takes batches of several loaders at once.
        iterates_manually: whether the cell calls ``iter(loader)`` itself, for a loop that cannot be
            identified.
    """

    def __init__(self, loader: DataLoader[Any], context: LoaderContext) -> None:
        """Prepare to shard ``loader``."""
        self._context = context
        self.epoch = 0
        self.is_zipped = False
        self.iterates_manually = False
        self._is_indexed = not isinstance(loader.dataset, IterableDataset)
        self._reader = (
            IndexedShardReader(loader, context) if self._is_indexed else StreamShardReader(context)
        )
        self._unreported_draws: DrawDetector | None = None

    def iterate(
        self, loader: DataLoader[Any], frame: FrameType | None, cycled: bool = False
    ) -> Iterator[Any]:
        """Begin a pass over the rank's shards of ``loader`` for the loop in ``frame``.

        Batches are drawn as on one device.  With ``cycled``, the pass repeats its batches forever:
        ``itertools.cycle`` would repeat them without calling the loader.
        """
        self.report_remaining_draws()
        context = self._context
        context.streams.sync_from_rank_0()
        context.losses.divisors.divisors.restart()
        with context.streams.notebook_stream():
            seed, shards = self._reader.read(loader, self._min_samples_of_remainder)
        num_batches = 0 if cycled else _length(loader)
        own = reachable_generators(frame, excluded=context.sampler_generators)
        self.iterates_manually = loop_trains(frame) is None
        variables = step_variables(frame)
        context.losses.batch_dependence.step_values.begin_pass(self, variables.bound)
        shards = repeat_forever(shards) if cycled else shards
        return self._pass(loader, seed, shards, num_batches, own, variables.read_later)

    def _pass(
        self,
        loader: DataLoader[Any],
        seed: int,
        shards: Iterator[tuple[Any, BatchShard]],
        num_batches: int,
        own: list[Any],
        read_later: Collection[str],
    ) -> Iterator[Any]:
        """Yield the batches of one pass and emit their events.

        Args:
            loader: the user's loader.  Only this generator may hold a reference to it.
            seed: seed of the rank's own random stream in the training steps.
            shards: the batches of the rank, each with its planned shard.
            num_batches: number of batches, or 0 if unknown.
            own: the generators that the loop may draw from.
            read_later: variables of a step that the cell reads after the pass.
        """
        context, steps, losses = self._context, self._context.steps, self._context.losses
        progress, per_shard = steps.progress, context.rank_info.batch == "global"
        self.epoch += 1
        before, num_steps, enclosing = progress.backwards, 0, progress.begin_pass(self)
        streams, this_pass = context.streams, object()
        streams.enter_step(this_pass, seed)
        context.note_batch_norm()
        pass_draws: DrawDetector | None = None
        shapes = CollatedShapes(loader, per_shard=self._is_indexed and per_shard)
        try:
            progress.sharded_passes += 1  # before the first shard, which may fail to load
            for (batch, planned), last in steps.with_last(shards):
                num_steps += 1
                num_rows = count_rows(batch)
                shard = adjust_to_collated(planned, batch, num_rows)
                bar = {"step": num_steps, "total": num_batches, "epoch": self.epoch}
                steps.queue_batch(self, batch, shard, last, tokens_in(batch), **bar)
                if shard.is_partial and not shard.is_padding:
                    # Otherwise some tensors may have other lengths.
                    known = num_rows in (shard.samples, None)
                    losses.batch_dependence.add_batch(
                        batch, shard.samples if known else 0, shard.global_samples
                    )
                shapes.add(batch, num_rows, planned)
                losses.diagnostics.has_ragged_samples |= shapes.has_variable_rows
                pass_draws = self._unreported_draws = pass_draws or DrawDetector(own)
                step_draws = DrawDetector(own) if progress.backwards < STEPS_CHECKED else None
                yield batch
                if step_draws is not None and progress.backwards > before:
                    context.note_draws(step_draws)
            if read_later and num_steps:  # not where the cell breaks out of its loop
                context.make_whole(read_later)
        finally:
            self._unreported_draws = None
            trained = progress.backwards > before
            if pass_draws is not None and trained and not self._reader.has_random_samples:
                # A custom sampler, or a stream, may have drawn as on one device.
                host = self._is_indexed and uses_torch_sampler(loader)
                context.note_draws(pass_draws, host)
            if shapes.has_variable_shapes:
                context.recorder.notice("padded", notices.PADDED)
            streams.leave_step(this_pass)
            losses.batch_dependence.stop_if_done()
            if num_steps > 1 and not steps.events.is_prefetching:  # otherwise training may follow
                progress.note_untrained_pass(before)
            steps.queue_end(self, enclosing, before if num_steps else None)

    def report_remaining_draws(self) -> None:
        """Report draws since the first batch of a pass that has not been iterated to its end."""
        if self._unreported_draws is not None:
            self._context.note_draws(self._unreported_draws, host=False)

    def _min_samples_of_remainder(self, samples: int, batch_size: int | None) -> int:
        """Return the minimum shard size of a batch; 1 if the loop reads several loaders."""
        # Workers receive their first batches before the other loader's pass begins.
        if self.is_zipped or self._context.steps.progress.is_inside_other_pass(self):
            return 1
        return min_samples_of_remainder(samples, batch_size, self._context.rank_info.dp_size)


def _length(loader: DataLoader[Any]) -> int:
    """Return the number of batches, or 0 if unknown."""
    try:
        return len(loader)
    except TypeError:
        return 0
