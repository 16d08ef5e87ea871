"""The position of a rank in its run and in the data-parallel dimension of the device mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class RankInfo:
    """Which rank this process is, and which shard of each batch it trains on.

    Attributes:
        rank: of this process, from 0.
        world_size: number of processes.
        dp_rank: index along the data-parallel dimension; ranks that share it see the same samples.
        dp_size: size of that dimension: the number of shards of a batch, and the number of
            gradients that are averaged.
        batch: ``"global"`` to split each batch of the cell over ``dp_size`` shards, or
            ``"per-rank"`` to give each rank a batch of its own.
        shards_data: whether loaders that train are sharded: there are several ranks, and the
            strategy does not leave the distribution to the cell.
        dp_group: process group of the ranks along the data-parallel dimension; None, the default
            group, if these are all ranks.
    """

    rank: int
    world_size: int
    dp_rank: int
    dp_size: int
    batch: Literal["global", "per-rank"]
    shards_data: bool
    dp_group: ProcessGroup | None = None

    @property
    def splits_batches(self) -> bool:
        """Whether other ranks have other samples of a batch."""
        return self.dp_size > 1
