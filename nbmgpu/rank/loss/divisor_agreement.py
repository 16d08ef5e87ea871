"""Agreement of the ranks on the meaning of numbers that divide sums in a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .divisors import Divisor, DivisorComparison, Meaning

if TYPE_CHECKING:
    from nbmgpu.rank.data.loader_events import LoaderEventDispatcher
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo


class DivisorAgreement:
    """Asks the other ranks about the divisors of a loss, where its batch is split over ranks."""

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        events: LoaderEventDispatcher,
        divisors: DivisorComparison,
    ) -> None:
        """Agree through ``divisors``."""
        self._rank_info = rank_info
        self._progress = progress
        self._events = events
        self.divisors = divisors

    def agree(
        self, op_names: tuple[str, ...], found: Sequence[Divisor], by_tensor: bool
    ) -> list[Meaning]:
        """Return what each divisor means; collective once a loader has been sharded.

        Args:
            op_names: operations of the loss's autograd nodes.
            found: the numbers that divide sums.
            by_tensor: whether tensors divide some sums.
        """
        local = [divisor.local_meaning for divisor in found]
        if not self._rank_info.shards_data or not self._progress.sharded_passes:
            return local
        # Independent of the shard that this rank has: with prefetched batches, ranks may have
        # assigned this step to different batches.
        shard = self._progress.shard
        even = (
            shard is not None
            and self._rank_info.batch == "global"
            and shard.is_even(self._rank_info.dp_size)
        )
        split = shard is not None and shard.is_partial
        signature = (*op_names, self._progress.backwards_of_batch)
        certain = self._events.is_in_order
        meanings = self.divisors.agree(
            signature, found if split else (), by_tensor, even and certain
        )
        return meanings if split else local
