"""Tensors that every rank holds, and of which each rank has changed some: others gather those.

They are sent in buckets, each of which is one all-gather of equal parts, however many ranks there
are; a broadcast by each rank would be as many collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch

from .buckets import BUCKET_BYTES
from .collectives import all_gather

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class OwnedBucket:
    """Tensors of one dtype and device that are gathered together.

    Attributes:
        tensors: for each rank, in order, the tensors that it has changed; there may be none.
    """

    tensors: Sequence[list[Tensor]]

    @torch.no_grad()
    def gather(self, rank: int, group: ProcessGroup | None) -> None:
        """Copy what the other ranks of ``group`` have changed; collective.

        Args:
            rank: this rank's in ``group``.
            group: None for all ranks.
        """
        sizes = [sum(tensor.numel() for tensor in owned) for owned in self.tensors]
        like = next(tensor for owned in self.tensors for tensor in owned)
        gathered = like.new_empty(len(sizes), max(sizes))
        for place, tensor in zip(self._places(gathered, rank), self.tensors[rank], strict=True):
            place.copy_(tensor)
        all_gather(gathered.view(-1), gathered[rank], group)
        for owner, owned in enumerate(self.tensors):
            if owner != rank and owned:
                # A graph may have saved tensors that their owner has not changed, too.
                held = [tensor.data for tensor in owned]
                torch._foreach_copy_(held, self._places(gathered, owner))

    def _places(self, gathered: Tensor, owner: int) -> list[Tensor]:
        """Return the places of an owner's tensors in its row of ``gathered``."""
        owned = self.tensors[owner]
        places = gathered[owner].split_with_sizes(_numels(owned, gathered.shape[1]))
        return [p.view(t.shape) for p, t in zip(places, owned, strict=False)]


def _numels(tensors: Sequence[Tensor], total: int) -> list[int]:
    numels = [tensor.numel() for tensor in tensors]
    return [*numels, total - sum(numels)]


def owned_buckets(tensors: Sequence[Sequence[Tensor]]) -> list[OwnedBucket]:
    """Group tensors by dtype and device, and those into buckets.

    Args:
        tensors: for each rank, in order, those that it changes; the same lists on all ranks.
    """
    kinds = dict.fromkeys((t.dtype, t.device) for owned in tensors for t in owned)
    found = []
    for kind in kinds:
        alike = [[t for t in owned if (t.dtype, t.device) == kind] for owned in tensors]
        for parts in zip_longest(*map(_in_buckets, alike), fillvalue=[]):
            found.append(OwnedBucket(parts))
    return found


def _in_buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Split one rank's tensors into buckets of ``BUCKET_BYTES``, or of one larger tensor."""
    buckets: list[list[Tensor]] = []
    size = BUCKET_BYTES
    for tensor in tensors:
        if size + tensor.nbytes > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets
