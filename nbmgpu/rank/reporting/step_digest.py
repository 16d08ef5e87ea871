"""Digests of the steps that a rank has trained; compared between ranks after the cell."""

from __future__ import annotations

import hashlib


class StepDigestBuilder:
    """What must be the same on all ranks: the steps with a backward pass, and their reductions."""

    def __init__(self) -> None:
        """Begin without a step."""
        self._steps = hashlib.blake2b(digest_size=8)
        self._reductions = hashlib.blake2b(digest_size=8)
        self._all_known = True

    def add_step(self, step: int) -> None:
        """Add a backward pass on the batch of ``step``."""
        self._steps.update(b"%d," % step)

    def add_reduction(self, reduction: str, known: bool) -> None:
        """Add how a loss reduces; ``known`` is whether every shard of the batch would show it."""
        self._all_known &= known
        self._reductions.update(reduction.encode())

    @property
    def steps(self) -> str:
        """Digest of the steps, as hexadecimal digits."""
        return self._steps.hexdigest()

    @property
    def reductions(self) -> str:
        """Digest of the reductions, as hexadecimal digits; empty if some are not known."""
        return self._reductions.hexdigest() if self._all_known else ""
