"""Counts what attention needs of whole sequences, where layers run on slices of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.sequence.attention import AttentionCall, patch_attention

from .memory_tracker import TensorMemoryTracker
from .running_region import RunningRegion


class SharedAttention:
    """Watches calls of ``scaled_dot_product_attention``; see ``strategies.sequence.attention``."""

    def __init__(self, tracker: TensorMemoryTracker) -> None:
        """Count in the regions of ``tracker`` that are slices of sequences."""
        self._tracker = tracker
        regions = [memory.region for memory in tracker.memories]
        self._regions = [r for r in regions if r.parts.attention != "as computed"]
        self._masks: set[tuple[RunningRegion, int, int]] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch calls in the body."""
        patches = PatchStack()
        if self._regions:
            patch_attention(patches, self._watch)
        try:
            yield
        finally:
            patches.remove()

    def _watch(self, call: AttentionCall) -> Tensor:
        self._count(call)
        try:
            return call.run()
        finally:
            for region in self._regions if call.dropout_p else ():
                region.leave()

    def _count(self, call: AttentionCall) -> None:
        query, key, value = call.query, call.key, call.value
        draws = bool(call.dropout_p)
        for region in self._regions:
            gathers = region.parts.attention == "own queries"
            if draws:  # one device draws for all heads and positions at once
                region.enter(1.0)
            elif gathers and call.is_causal:
                self._hold_mask(region, query, key)
            gathered = (query, key, value) if draws else (key, value) if gathers else ()
            for tensor in gathered:
                self._tracker.count_in_full(tensor, region)

    def _hold_mask(self, region: RunningRegion, query: Tensor, key: Tensor) -> None:
        """Count the mask of this rank's queries, which all layers share."""
        queries, keys = query.shape[-2], key.shape[-2]
        if (region, queries, keys) not in self._masks:
            self._masks.add((region, queries, keys))
            size = queries * keys * query.element_size() / region.parts.ranks
            self._tracker.hold(size, region)
