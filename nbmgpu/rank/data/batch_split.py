"""Splits a global batch into shards: index lists before loading, or rows after collation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from .batch_shard import BatchShard


def split_batch(
    global_samples: int, dp_rank: int, dp_size: int, min_samples: int = 1
) -> tuple[slice, BatchShard]:
    """Return the slice of a global batch that belongs to ``dp_rank``, and its shard.

    Shard sizes differ by at most one sample.  If a rank would get fewer than ``min_samples``, rank
    0 takes the whole batch.  The other ranks then run the same samples as padding with weight 0, so
    that no rank is missing from a collective.
    """
    if global_samples < min_samples * dp_size:
        return slice(0, global_samples), BatchShard(
            global_samples, global_samples, is_padding=dp_rank > 0
        )
    size, remainder = divmod(global_samples, dp_size)
    start = dp_rank * size + min(dp_rank, remainder)
    stop = start + size + (dp_rank < remainder)
    return slice(start, stop), BatchShard(stop - start, global_samples)


def min_samples_of_remainder(samples: int, batch_size: int | None, dp_size: int) -> int:
    """Return the minimum shard size for a batch that may be the incomplete last one.

    ``model(x).squeeze()`` fails on a shard of one sample, even if one device never sees such a
    batch.  An incomplete last batch is therefore assigned to a single rank instead of one sample
    per rank, if it is no larger than that rank's shard in every other step.  The other ranks wait.
    """
    one_each = samples < 2 * dp_size
    incomplete = (
        batch_size is not None and samples < batch_size and samples <= batch_size // dp_size
    )
    return 2 if one_each and incomplete else 1


def split_indices(
    batch: Sequence[Any], dp_rank: int, dp_size: int, min_samples: int
) -> tuple[list[Any], BatchShard]:
    """Return the rank's part of the index list of one global batch, and its shard."""
    part, shard = split_batch(len(batch), dp_rank, dp_size, min_samples)
    return list(batch[part]), shard


def select_batch(group: Sequence[Sequence[Any]], dp_rank: int) -> tuple[list[Any], BatchShard]:
    """Return the rank's own batch of a group of one batch per rank (``--batch per-rank``).

    The last group may be incomplete; ranks without a batch run the first one as padding.
    """
    global_samples = sum(len(batch) for batch in group)
    if dp_rank < len(group):
        return list(group[dp_rank]), BatchShard(len(group[dp_rank]), global_samples)
    return list(group[0]), BatchShard(len(group[0]), global_samples, is_padding=True)


def batch_sizes(loader: DataLoader[Any]) -> Iterator[int | None]:
    """Yield the number of samples of each batch of ``loader``, None where it is not known ahead."""
    size = loader.batch_size
    try:
        remaining = 0 if isinstance(loader.dataset, IterableDataset) else len(loader.sampler)  # type: ignore[arg-type]
    except TypeError:
        remaining = 0
    while size and remaining > 0:
        yield min(size, remaining)
        remaining -= size
    while True:
        yield None


def adjust_to_collated(shard: BatchShard, batch: Any, num_rows: int | None) -> BatchShard:
    """Return ``shard`` with the samples that are in ``batch``: a ``collate_fn`` may drop some.

    Ranks weight their losses by these counts and divide by the sum of all weights, so the remaining
    samples count as on one device.  If every tensor has the samples in a dimension other than the
    first, as in batches of shape (tokens, samples), none are missing.

    Args:
        shard: the shard as planned before loading.
        batch: the collated batch.
        num_rows: the rows of ``batch``, or None if its tensors disagree.
    """
    if num_rows is None or not 0 < num_rows < shard.samples:
        return shard
    arrays = (x for x in tree_leaves(batch) if isinstance(x, torch.Tensor | np.ndarray) and x.ndim)
    in_other_dim = [shard.samples in array.shape[1:] for array in arrays]
    if in_other_dim and all(in_other_dim):
        return shard
    return replace(shard, samples=num_rows)


def count_rows(batch: Any) -> int | None:
    """Return the number of samples of a collated batch, or None if it cannot be split by rows.

    All its tensors, arrays and lists of plain values must have the same length.
    """
    lengths: set[int] = set()
    if not _collect_lengths(batch, lengths) or len(lengths) != 1:
        return None
    return lengths.pop()


def _collect_lengths(item: Any, lengths: set[int]) -> bool:
    """Add the lengths found in ``item``; return False if it contains an unknown type."""
    if isinstance(item, torch.Tensor | np.ndarray):
        if item.ndim:
            lengths.add(len(item))
        return True
    if isinstance(item, list | tuple):
        if _is_column(item):
            lengths.add(len(item))
            return True
        return all(_collect_lengths(value, lengths) for value in item)
    if isinstance(item, Mapping):
        return all(_collect_lengths(value, lengths) for value in item.values())
    return item is None or isinstance(item, str | bytes | int | float | bool)


def _is_column(item: Sequence[Any]) -> bool:
    """Return whether a list holds one plain value per sample, as collated strings do."""
    return bool(item) and all(isinstance(value, str | bytes | int | float) for value in item)


def slice_rows(item: Any, part: slice) -> Any:
    """Return the rows ``part`` of a batch for which ``count_rows`` returned a number."""
    if isinstance(item, torch.Tensor | np.ndarray):
        return item[part] if item.ndim else item
    if isinstance(item, Mapping):
        values = {key: slice_rows(value, part) for key, value in item.items()}
        return values if type(item) is dict else type(item)(values)  # type: ignore[call-arg]
    if isinstance(item, list | tuple):
        if _is_column(item):
            return item[part]
        values_ = [slice_rows(value, part) for value in item]
        if hasattr(item, "_fields"):  # a namedtuple
            return type(item)(*values_)
        return type(item)(values_)
    return item
