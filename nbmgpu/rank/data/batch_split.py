"""How a global batch is cut: by index lists before loading, or by rows after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from .batch_shard import Share


def cut(whole: int, rank: int, world_size: int, least: int = 1) -> tuple[slice, Share]:
    """Return the slice of ``whole`` samples that is the rank's, and its share.

    Shares differ by at most one sample.  Where some rank would get fewer than
    ``least``, rank 0 takes all and the others stand in: they run the same samples,
    which count nothing, so that nobody is missing from a collective.
    """
    if whole < least * world_size:
        return slice(0, whole), Share(whole, whole, empty=rank > 0)
    size, longer = divmod(whole, world_size)
    start = rank * size + min(rank, longer)
    stop = start + size + (rank < longer)
    return slice(start, stop), Share(stop - start, whole)


def least_of_rest(samples: int, size: int | None, world_size: int) -> int:
    """Return the fewest samples that a rank's share of a batch may have, by what is left over.

    A cell with ``model(x).squeeze()`` fails at a share of one, and one device never sees it.  So
    what is left over behind batches of ``size`` goes to one rank, rather than one by one to
    several, if it is no more than that rank has in every step.  Others wait meanwhile.
    """
    one_by_one = samples < 2 * world_size
    left_over = size is not None and samples < size and samples <= size // world_size
    return 2 if one_by_one and left_over else 1


def cut_indices(batch: Sequence[Any], rank: int, world: int, least: int) -> tuple[list[Any], Share]:
    """Cut the index list of one global batch."""
    part, share = cut(len(batch), rank, world, least)
    return list(batch[part]), share


def pick_batch(group: Sequence[Sequence[Any]], rank: int) -> tuple[list[Any], Share]:
    """Return the rank's own batch of a group of one per rank (``--batch per-rank``).

    The last group may be short; ranks without a batch stand in with the first one.
    """
    whole = sum(len(batch) for batch in group)
    if rank < len(group):
        return list(group[rank]), Share(len(group[rank]), whole)
    return list(group[0]), Share(len(group[0]), whole, empty=True)


def sizes(loader: DataLoader[Any]) -> Iterator[int | None]:
    """Yield how many samples each batch of ``loader`` has, None where only the batch can tell."""
    size = loader.batch_size
    try:
        left = 0 if isinstance(loader.dataset, IterableDataset) else len(loader.sampler)  # type: ignore[arg-type]
    except TypeError:
        left = 0
    while size and left > 0:
        yield min(size, left)
        left -= size
    while True:
        yield None


def as_collated(share: Share, batch: Any, here: int | None) -> Share:
    """Return ``share`` with the samples that are in ``batch``: a ``collate_fn`` may leave some out.

    ``here`` are the rows of ``batch``.
    Ranks weigh by these, and divide by the sum of all weights, so that what is left counts as on
    one device.  Where every tensor has the samples in another dimension than the first, as
    batches of (tokens, samples) have, none are missing.
    """
    if here is None or not 0 < here < share.samples:
        return share
    arrays = (x for x in tree_leaves(batch) if isinstance(x, torch.Tensor | np.ndarray) and x.ndim)
    elsewhere = [share.samples in array.shape[1:] for array in arrays]
    if elsewhere and all(elsewhere):
        return share
    return replace(share, samples=here)


def rows(batch: Any) -> int | None:
    """Return the number of samples of a collated batch, or None if it cannot be cut by rows.

    All its tensors, arrays and lists of plain values must have the same length.
    """
    lengths: set[int] = set()
    if not _collect(batch, lengths) or len(lengths) != 1:
        return None
    return lengths.pop()


def _collect(item: Any, lengths: set[int]) -> bool:
    if isinstance(item, torch.Tensor | np.ndarray):
        if item.ndim:
            lengths.add(len(item))
        return True
    if isinstance(item, list | tuple):
        if _is_column(item):
            lengths.add(len(item))
            return True
        return all(_collect(value, lengths) for value in item)
    if isinstance(item, Mapping):
        return all(_collect(value, lengths) for value in item.values())
    return item is None or isinstance(item, str | bytes | int | float | bool)


def _is_column(item: Sequence[Any]) -> bool:
    """Tell whether a list holds one plain value per sample, as collated strings do."""
    return bool(item) and all(isinstance(value, str | bytes | int | float) for value in item)


def cut_rows(item: Any, part: slice) -> Any:
    """Return the rows ``part`` of a batch that ``rows`` has accepted."""
    if isinstance(item, torch.Tensor | np.ndarray):
        return item[part] if item.ndim else item
    if isinstance(item, Mapping):
        values = {key: cut_rows(value, part) for key, value in item.items()}
        return values if type(item) is dict else type(item)(values)  # type: ignore[call-arg]
    if isinstance(item, list | tuple):
        if _is_column(item):
            return item[part]
        values_ = [cut_rows(value, part) for value in item]
        if hasattr(item, "_fields"):  # a namedtuple
            return type(item)(*values_)
        return type(item)(values_)
    return item
