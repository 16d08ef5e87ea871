"""Batches that a ``collate_fn`` of the user's has made of a rank's samples alone.

What such a function does to its samples together, it does in a rank to those of the share: it
pads to the longest of these, and joins as many rows as these have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate, default_convert

from .batch_shard import Share
from .current_batch import tensors_in

MASK = "attention_mask"
"""What models of transformers leave padding out by."""

IGNORED = -100
"""The target of what a loss leaves out."""


class Collated:
    """The sizes of a loader's batches, as a rank has met them."""

    def __init__(self, loader: DataLoader[Any], alone: bool) -> None:
        """Have met none; ``alone`` says that ``loader`` is given the rank's samples alone."""
        self._asks = alone and loader.collate_fn not in (default_collate, default_convert)
        self._widths: set[tuple[Any, ...]] = set()
        self._ratios: set[float] = set()
        self._rows: dict[int, set[tuple[int, float]]] = {}

    def meet(self, batch: Any, rows: int | None, share: Share) -> None:
        """Take in a batch of so many ``rows``; None where its tensors have different ones."""
        cut = share.is_part and not share.empty
        if not self._asks or not cut:
            return
        if rows is None:
            self._meet_by_itself(batch, share.samples)
            return
        if _is_masked(batch):  # some of a loader's batches have nothing to mask
            self._asks = False
            return
        tensors = [tensor for tensor in tensors_in(batch) if tensor.ndim]
        if all(share.samples in tensor.shape[1:] for tensor in tensors):
            return  # time first
        if rows > share.samples:
            self._ratios.add(rows / share.samples)
        elif rows == share.samples:
            self._widths.add(tuple(tuple(tensor.shape[1:]) for tensor in tensors))

    def _meet_by_itself(self, batch: Any, samples: int) -> None:
        """Take in tensors of which each has rows of its own: samples, or what was joined of them.

        What always has as many rows, however many samples there are, has none of samples.
        """
        tensors = [tensor for tensor in tensors_in(batch) if tensor.ndim]
        others = [tensor for tensor in tensors if samples not in tensor.shape]
        alike = [tensor for tensor in tensors if len(tensor) == samples]
        for place, tensor in enumerate(others):
            self._rows.setdefault(place, set()).add((len(tensor), len(tensor) / samples))
        if alike:
            self._widths.add(tuple(tuple(tensor.shape[1:]) for tensor in alike))

    @property
    def padded(self) -> bool:
        """Whether tensors are as long as the longest sample, or otherwise different each time."""
        return self._asks and len(self._widths) > 1

    @property
    def joined(self) -> bool:
        """Whether samples have different numbers of rows."""
        for met in self._rows.values():
            lengths, ratios = ({each[n] for each in met} for n in (0, 1))
            if len(lengths) > 1 and len(ratios) > 1:
                return True
        return len(self._ratios) > 1 or any(ratio % 1 for ratio in self._ratios)


def _is_masked(batch: Any) -> bool:
    """Tell whether a batch says itself what of it is padding, as those of tokenizers do."""
    if not isinstance(batch, Mapping):
        return False
    labels = batch.get("labels")
    ignores = isinstance(labels, Tensor) and bool((labels == IGNORED).any())
    return MASK in batch or ignores
