"""How far the cell has trained: batch, step, backward passes, passes over loaders."""

from __future__ import annotations

from collections import Counter

from .data.batch_shard import BatchShard, EnclosingPass


class TrainingProgress:
    """Counters of one rank, and its shard of the current batch.

    Attributes:
        shard: this rank's part of the current batch; None outside of loops over sharded loaders.
        step: number of batches so far, or of backward passes outside of such loops; the x axis of
            metrics.
        trained_step: the last step with a backward pass; ``step`` may be a batch after it.
        samples: number of samples in all global batches so far.
        backwards_begun: number of backward passes that have begun on all ranks.
        backwards: number of backward passes that have finished.
        sharded_passes: number of passes over sharded loaders.
        had_untrained_pass: whether there was such a pass without a backward pass.
        stepped: ids of the optimizers that have stepped on the current batch.
        backwards_at_step: number of backward passes before the last optimizer step.
    """

    def __init__(self) -> None:
        """Begin before the first batch."""
        self.begin_run()

    def begin_run(self) -> None:
        """Begin before the first batch of a cell."""
        self.shard: BatchShard | None = None
        self.step = 0
        self.trained_step = 0
        self.samples = 0
        self.backwards_begun = 0
        self.backwards = 0
        self.sharded_passes = 0
        self.had_untrained_pass = False
        self.stepped: set[int] = set()
        self.backwards_at_step: int | None = None
        self._loader: object = None
        self._open_passes: Counter[object] = Counter()
        self._backwards_before_batch = 0

    @property
    def weight(self) -> float:
        """The fraction of the current batch that this rank has; 1 outside of sharded loops."""
        return 1.0 if self.shard is None else self.shard.weight

    @property
    def has_part(self) -> bool:
        """Whether this rank has a part of the current batch, and other ranks the rest."""
        return self.shard is not None and self.shard.is_partial

    @property
    def has_no_pending_gradients(self) -> bool:
        """Whether an optimizer has stepped after the last backward pass, if any steps at all."""
        return self.backwards_at_step in (None, self.backwards)

    @property
    def loader(self) -> object:
        """The loader of the current or last batch."""
        return self._loader

    @property
    def backwards_of_batch(self) -> int:
        """Number of backward passes that have finished since the current batch began."""
        return self.backwards - self._backwards_before_batch

    def follows_unused_batch_of_other_loader(self, shard: BatchShard, loader: object) -> bool:
        """Whether the current batch was not trained on and weighs its shards unlike ``shard``."""
        unused = self.backwards_of_batch == 0 and self._loader not in (None, loader)
        return unused and self.shard is not None and self.shard.weight != shard.weight

    def begin_batch(self, shard: BatchShard, loader: object) -> None:
        """Begin a step on the next batch of ``loader``, of which this rank has ``shard``."""
        self._loader = loader
        self.shard = shard
        self.step += 1
        self._backwards_before_batch = self.backwards
        self.stepped.clear()
        self.samples += shard.global_samples

    def begin_pass(self, loader: object) -> EnclosingPass:
        """Begin a pass over ``loader``; return what ``end_pass`` restores."""
        self._open_passes[loader] += 1
        return self.shard, self._loader

    def end_pass(self, loader: object, enclosing: EnclosingPass) -> None:
        """End a pass over ``loader``, and continue the ``enclosing`` one unless that has ended too.

        Otherwise the last loader stays current, so that the next pass within the enclosing one
        begins there as well.
        """
        self._open_passes -= Counter([loader])  # drops loaders without open passes
        shard, enclosing_loader = enclosing
        continues = self._open_passes[enclosing_loader] > 0
        self.shard, self._loader = (shard, enclosing_loader) if continues else (None, self._loader)

    def is_inside_other_pass(self, loader: object) -> bool:
        """Return whether passes over loaders other than ``loader`` are open."""
        return any(other is not loader for other in self._open_passes)

    def note_untrained_pass(self, backwards_before: int | None) -> None:
        """Note a pass in which no backward pass ran; None for a pass without a batch."""
        self.had_untrained_pass |= self.backwards == backwards_before
