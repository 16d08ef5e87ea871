"""Counts what attention needs of whole sequences, where layers run on slices of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from nbmgpu.patches import PatchStack

from .memory_tracker import TensorMemoryTracker
from .running_region import RunningRegion

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"


class SharedAttention:
    """Watches calls of ``scaled_dot_product_attention``; see ``strategies.sp.attention``."""

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
            patches.wrap(ATTENTION, self._wrap)
        try:
            yield
        finally:
            patches.remove()

    def _wrap(self, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def scaled_dot_product_attention(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Tensor | None = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            **options: Any,
        ) -> Tensor:
            self._count(query, key, value, bool(dropout_p), is_causal)
            try:
                return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
            finally:
                for region in self._regions if dropout_p else ():
                    region.leave()

        return scaled_dot_product_attention

    def _count(
        self, query: Tensor, key: Tensor, value: Tensor, draws: bool, is_causal: bool
    ) -> None:
        for region in self._regions:
            gathers = region.parts.attention == "own queries"
            if draws:  # one device draws for all heads and positions at once
                region.enter(1.0)
            elif gathers and is_causal:
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
