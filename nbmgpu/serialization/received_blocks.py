"""Recognizes memory that came with a bundle, and whether a rank has changed it."""

from __future__ import annotations

import bisect
from typing import Any

from . import container
from .address_space import BUNDLE_SPACE, MappedRegion
from .bundle import ReceivedBundle
from .file_layout import LARGE
from .memory_blocks import CPU, Block, BlockTable, untyped_bytes
from .page_changes import is_unmodified
from .threaded_copy import same_bytes


class ReceivedBlock(Block):
    """A block that came with the bundle; its addresses are offsets from its first byte."""

    def __init__(
        self, number: int, region: MappedRegion, before: memoryview, sent_from: str = CPU
    ) -> None:
        """Create block ``number`` of the bundle; ``before`` has its original bytes.

        The notebook has its memory on the device ``sent_from``.
        """
        super().__init__(f"{BUNDLE_SPACE} {number}", region.device, 0, before.nbytes, {})
        self.number = number
        self.sent_from = sent_from
        self.region = region
        self.before = before
        self._changed: bool | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are sent back: all, or none if they are unchanged."""
        if self._changed is None:
            large = self.device == CPU and self.high >= LARGE  # comparing small ones is faster
            unmodified = large and is_unmodified(self.region.raw)
            self._changed = not (unmodified or same_bytes(self.now(), self.before))
        return self.high if self._changed and not self.in_bundle else 0

    def bytes(self) -> memoryview:
        """Return the bytes that are sent back."""
        return self.now() if self.nbytes else memoryview(b"")

    def now(self) -> memoryview:
        """Return all of its present bytes."""
        if self.device == CPU:
            return self.region.raw
        return memoryview(untyped_bytes(self.region.storage(0, 0, 1)[0]).cpu().numpy())


class ReceivedTable(BlockTable):
    """A block table that recognizes memory that came with a bundle."""

    def __init__(self, received: ReceivedBundle) -> None:
        """Map the bundle again, for the original bytes of its blocks."""
        super().__init__()
        before = container.read(received.path).blocks
        memory = received.memory
        parts = zip(memory.regions, before, memory.sent_from, strict=True)
        self._received = [ReceivedBlock(number, *part) for number, part in enumerate(parts)]
        spans = ((block.region.span(), block) for block in self._received)
        self._spans = sorted((s for s in spans), key=lambda entry: entry[0])
        self._starts = [span[:2] for span, _ in self._spans]
        self._used: dict[str, ReceivedBlock] = {}

    @property
    def blocks(self) -> list[Block]:
        """New blocks, and the blocks of the bundle that are in use."""
        return [*super().blocks, *self._used.values()]

    def add(self, device: str, low: int, high: int, owner: Any) -> tuple[str, int]:
        """Add bytes, unless they are part of a block of the bundle."""
        at = bisect.bisect_right(self._starts, (device, low)) - 1
        if at >= 0:
            (where, start, end), block = self._spans[at]
            if where == device and high <= end and end - start == block.high:
                self._used[block.space] = block
                return block.space, low - start
        return super().add(device, low, high, owner)

    def forget(self) -> None:
        """Start again, but remember which blocks have changed."""
        self._merged, self._new = [], []
        self._used = {}
