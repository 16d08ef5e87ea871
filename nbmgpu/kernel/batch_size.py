"""Describes how batches are sharded; labextension/src/view/words.ts translates these lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbmgpu.strategies import data_parallel_size, profile_of

if TYPE_CHECKING:
    from nbmgpu.options.run_options import RunOptions


def batch_line(values: Iterable[Any], options: RunOptions, world_size: int) -> str:
    """Return one line on how batches of loaders and Trainers among ``values`` are sharded.

    Empty without any.
    """
    sizes = filter(None, map(_size, values))
    return "; ".join(dict.fromkeys(_line(size, options, world_size) for size in sizes))


def _size(value: Any) -> int:
    """Return the batch size of a DataLoader, or a Trainer of Hugging Face; 0 for other objects."""
    data, trainers = map(sys.modules.get, ("torch.utils.data", "transformers.trainer"))
    if data is not None and isinstance(value, data.DataLoader):
        return int(value.batch_size or 0)
    if trainers is not None and isinstance(value, trainers.Trainer):
        return int(value.args.train_batch_size)
    return 0


def _line(size: int, options: RunOptions, world_size: int) -> str:
    batches = options.accumulate
    if world_size == 1:
        alone = f"batch {size} on one rank"
        return alone if batches == 1 else f"global batch {size * batches} = {batches} x {alone}"
    if not profile_of(options.strategy).shards_data:
        return f"nothing is split: every rank reads every batch of {size}"
    shards = data_parallel_size(options.strategy, world_size, options)
    unit = "ranks" if shards == world_size else "shards"
    global_size = size * shards if options.batch == "per-rank" else size
    shard, longer = divmod(global_size, shards)
    line = f"global batch {global_size * batches}"
    if shards == 1:
        line += "" if batches == 1 else f" of {batches} batches"
        return f"{line}, all of it on every rank"
    if longer:
        line += f" on {shards} {unit}: {shard} or {shard + 1} each"
        return line if batches == 1 else f"{line} of {batches} batches"
    line += f" = {shards} {unit} x {shard}"
    return line if batches == 1 else f"{line} x {batches} batches"
