"""Shapes of batches that a custom ``collate_fn`` has made from a rank's samples alone.

Such a function sees the samples of the shard instead of the global batch.  It pads to the longest
sample of the shard, and concatenates as many rows as these samples have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate, default_convert

from .batch_shard import BatchShard
from .batch_tensors import iter_tensors

ATTENTION_MASK = "attention_mask"
"""Key of the mask by which transformers models exclude padding."""

IGNORE_INDEX = -100
"""Target that transformers models exclude from the loss."""


class CollatedShapes:
    """Records the shapes of a loader's batches, to detect padding and concatenated samples."""

    def __init__(self, loader: DataLoader[Any], per_shard: bool) -> None:
        """Create an empty record for one pass over ``loader``.

        Args:
            loader: the user's loader.
            per_shard: whether its ``collate_fn`` receives the rank's samples only.
        """
        self._enabled = per_shard and loader.collate_fn not in (default_collate, default_convert)
        self._trailing_shapes: set[tuple[Any, ...]] = set()
        self._rows_per_sample: set[float] = set()
        self._tensor_rows: dict[int, set[tuple[int, float]]] = {}

    def add(self, batch: Any, num_rows: int | None, shard: BatchShard) -> None:
        """Record a batch with ``num_rows`` rows; None if its tensors have different numbers."""
        is_split = shard.is_partial and not shard.is_padding
        if not self._enabled or not is_split:
            return
        if num_rows is None:
            self._add_tensors(batch, shard.samples)
            return
        if _is_masked(batch):  # some of a loader's batches have nothing to mask
            self._enabled = False
            return
        tensors = [tensor for tensor in iter_tensors(batch) if tensor.ndim]
        if all(shard.samples in tensor.shape[1:] for tensor in tensors):
            return  # time first
        if num_rows > shard.samples:
            self._rows_per_sample.add(num_rows / shard.samples)
        elif num_rows == shard.samples:
            self._trailing_shapes.add(tuple(tuple(tensor.shape[1:]) for tensor in tensors))

    def _add_tensors(self, batch: Any, samples: int) -> None:
        """Record tensors that each have their own number of rows: samples, or concatenated rows.

        A tensor that always has the same number of rows, whatever the number of samples, does not
        hold rows of samples.
        """
        tensors = [tensor for tensor in iter_tensors(batch) if tensor.ndim]
        others = [tensor for tensor in tensors if samples not in tensor.shape]
        per_sample = [tensor for tensor in tensors if len(tensor) == samples]
        for index, tensor in enumerate(others):
            rows = len(tensor), len(tensor) / samples
            self._tensor_rows.setdefault(index, set()).add(rows)
        if per_sample:
            self._trailing_shapes.add(tuple(tuple(tensor.shape[1:]) for tensor in per_sample))

    @property
    def has_variable_shapes(self) -> bool:
        """Whether shapes differ between batches, as with padding to the longest sample."""
        return self._enabled and len(self._trailing_shapes) > 1

    @property
    def has_variable_rows(self) -> bool:
        """Whether samples have different numbers of rows."""
        for rows in self._tensor_rows.values():
            lengths, ratios = ({each[n] for each in rows} for n in (0, 1))
            if len(lengths) > 1 and len(ratios) > 1:
                return True
        return len(self._rows_per_sample) > 1 or any(r % 1 for r in self._rows_per_sample)


def _is_masked(batch: Any) -> bool:
    """Return whether a batch marks its own padding, as those of tokenizers do."""
    if not isinstance(batch, Mapping):
        return False
    labels = batch.get("labels")
    has_ignored = isinstance(labels, Tensor) and bool((labels == IGNORE_INDEX).any())
    return ATTENTION_MASK in batch or has_ignored
