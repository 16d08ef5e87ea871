"""Numbers in a loss that equal the size of a rank's share: a size, or a constant by chance?

``sum / len(x)`` is a mean over the share, ``sum / 4`` is not, and in the autograd graph
both are a number.  A number that divides is taken for a size if it equals one on every rank,
since people write means like that; one that multiplies is taken for a constant.  Where the
run cannot bear that out, people are told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.source_analysis.notebook_code import NotebookCode

if TYPE_CHECKING:
    from .loss_graph import LossGraph

SIZES = {"len", "size", "shape", "numel", "nelement", "batch_size"}
"""Names by which code asks for the size of a batch."""

FEW = 3
"""Ratios with the sizes of shares that there may be."""

MOST = 64
"""Numbers of a kind that are remembered."""


class Chances:
    """What the losses of a run have shown."""

    def __init__(self) -> None:
        """Have seen no loss; ``code_of`` is to tell what the notebook has of code."""
        self.code_of: Callable[[], NotebookCode] = lambda: NotebookCode(set(), set())
        self._code: NotebookCode | None = None
        self._sure: set[str] = set()
        self._unsure = self._sized = False
        self._divided: set[bool] = set()
        self._multiplied: set[bool] = set()
        self._sizes: set[float] = set()
        self._scaled: set[float] = set()
        self._ratios: set[float] = set()
        self.by_ratio = False
        self._multiple = False

    def note(self, graph: LossGraph) -> None:
        """Take in the loss of a step."""
        if graph.sizes:
            taken = {size for size in graph.sizes if size is not None}
            self._divided.add(bool(taken))
            self._sizes |= taken
        if graph.multiplied is not None:
            self._multiplied.add(graph.multiplied)
        self._scaled |= graph.scaled
        if len(self._ratios) < MOST:  # others are calculated anew for each step
            self._ratios |= graph.ratios
        self._multiple |= graph.by_multiple
        self._sized |= graph.mean_by_share

    def meant(self, kind: str, wanted: set[float]) -> bool:
        """Tell whether a number that may be a size of a batch is most likely that.

        It is if the code multiplies or divides by a size and nothing that is ``wanted`` stands
        there; what was a size of its ``kind`` once is so in every step.
        """
        if not self.code.scales_by_size:
            return False
        if not self.code.numbers & wanted:
            self._sure.add(kind)
        self._unsure |= kind not in self._sure
        return kind in self._sure

    @property
    def code(self) -> NotebookCode:
        """What the notebook has of code, looked up once."""
        self._code = self._code or self.code_of()
        return self._code

    def scaled_penalty(self, code: NotebookCode) -> bool:
        """Tell whether a penalty was divided by a number that is most likely a size."""
        return bool(self._scaled - code.numbers) and bool(code.names & SIZES)

    def verdict(self, code: NotebookCode) -> str:
        """Return the notice to give, or nothing; ``code`` is what the notebook has of it."""
        contradicted = self._divided == {True, False}
        # A constant is always the same, and stands somewhere.
        constant = len(self._sizes) == 1 and self._sizes <= code.numbers and not code.names & SIZES
        if contradicted or (self._divided == {True} and constant):
            return notices.DIVIDED_BY_CHANCE
        if self._multiple and code.divides_by_multiple:
            return notices.DIVIDED_BY_MULTIPLE
        if self._unsure:
            return notices.EITHER
        if self._sized:
            return notices.SIZED_MEAN
        if self._multiplied == {True}:
            return notices.MULTIPLIED_BY_CHANCE
        few = 0 < len(self._ratios - code.numbers) <= FEW  # a schedule has many
        return notices.RATIO if self.by_ratio and few else ""


@dataclass(frozen=True)
class SizeQuestions:
    """What the code says of numbers in the loss of a batch of ``whole`` samples."""

    chances: Chances
    whole: int = 0
    world_size: int = 1

    def asks_for_share(self, samples: int) -> bool:
        """Tell whether a number is the samples of the share; the same on all ranks."""
        least = self.whole // self.world_size
        uneven = self.whole % self.world_size > 0
        return self.chances.meant("share", {least, least + 1} if uneven else {samples})

    def asks_for_elements(self) -> bool:
        """Tell whether a number that is ``whole`` is the elements of a share, and not that."""
        return self.chances.meant("elements", {self.whole})

    def is_constant(self, number: float) -> bool:
        """Tell whether a number stands in the code."""
        return number in self.chances.code.numbers
