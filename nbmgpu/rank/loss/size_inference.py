"""Decides whether a number in a loss that equals the size of a rank's shard is a size or constant.

``sum / len(x)`` is a mean over the shard, ``sum / 4`` is not; in the autograd graph, both divisors
are plain numbers.  A number that divides is classified as a size if it equals one on every rank,
because means are commonly written like that.  A number that multiplies is classified as a constant.
If the run does not support the classification, the user gets a notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.source_analysis.notebook_code import NotebookCode

if TYPE_CHECKING:
    from .loss_graph import LossGraph

SIZE_NAMES = {"len", "size", "shape", "numel", "nelement", "batch_size"}
"""Names by which code obtains the size of a batch."""

MAX_RATIOS = 3
"""Ratios with sizes of shards up to which they are reported; a schedule has more."""

MAX_REMEMBERED = 64
"""Ratios that are remembered."""


class SizeInference:
    """Collects evidence from the losses of a run.

    Attributes:
        load_code: returns the notebook's code; called once, when it is first needed.
        loop_divides_by_batch_size: whether a training loop divides by the size of a batch.
    """

    def __init__(self) -> None:
        """Begin without evidence."""
        self.load_code: Callable[[], NotebookCode] = lambda: NotebookCode(set(), set())
        self.loop_divides_by_batch_size = False
        self._code: NotebookCode | None = None
        self._certain: set[str] = set()
        self._is_uncertain = self._mean_by_size = False
        self._divided_by_size: set[bool] = set()
        self._multiplied_by_inverse: set[bool] = set()
        self._sizes: set[float] = set()
        self._penalty_factors: set[float] = set()
        self._ratios: set[float] = set()
        self._divided_by_multiple = False

    def add(self, graph: LossGraph) -> None:
        """Add the evidence of the loss of one step."""
        divisions, factors = graph.divisions, graph.factors
        if divisions.sizes:
            sizes = {size for size in divisions.sizes if size is not None}
            self._divided_by_size.add(bool(sizes))
            self._sizes |= sizes
        if factors.inverse_size is not None:
            self._multiplied_by_inverse.add(factors.inverse_size)
        self._penalty_factors |= factors.of_penalty
        if len(self._ratios) < MAX_REMEMBERED:  # more ratios are computed anew for each step
            self._ratios |= factors.ratios
        self._divided_by_multiple |= divisions.by_multiple
        self._mean_by_size |= factors.mean_by_size

    def is_size(self, kind: str, candidates: set[float]) -> bool:
        """Return whether a number that may be a size of a batch most likely is one.

        It is one if the code multiplies or divides by a size, and a constant if it does by one of
        the ``candidates``, as a literal or a value.  If it does both, or neither that can be seen,
        the number may be either.  A number classified as a size of its ``kind`` once is one in
        every step.
        """
        is_constant = bool(self.code.constants & candidates)
        if self.code.scales_by_size and not is_constant:
            self._certain.add(kind)
        elif is_constant and not self.code.scales_by_size:
            return False
        self._is_uncertain |= kind not in self._certain
        return kind in self._certain

    @property
    def code(self) -> NotebookCode:
        """The notebook's code, loaded once."""
        self._code = self._code or self.load_code()
        return self._code

    def has_penalty_by_size(self, code: NotebookCode) -> bool:
        """Return whether a penalty was divided by a number that is most likely a size."""
        return bool(self._penalty_factors - code.numbers) and bool(code.names & SIZE_NAMES)

    def notice_text(self, code: NotebookCode) -> str:
        """Return the text of the notice to give for the notebook's ``code``, or ""."""
        contradicted = self._divided_by_size == {True, False}
        # A constant is the same in every step, and is a literal in the code.
        is_literal = len(self._sizes) == 1 and self._sizes <= code.numbers
        constant = is_literal and not code.scales_by_size
        if contradicted or (self._divided_by_size == {True} and constant):
            return notices.DIVISOR_MATCHES_SIZE
        if self._divided_by_multiple and code.divides_by_multiple:
            return notices.DIVIDED_BY_MULTIPLE
        if self._is_uncertain:
            return notices.SIZE_OR_CONSTANT
        if self._mean_by_size:
            return notices.SIZED_MEAN
        if self._multiplied_by_inverse == {True}:
            return notices.FACTOR_MATCHES_SIZE
        few = 0 < len(self._ratios - code.numbers) <= MAX_RATIOS
        return notices.RATIO if self.loop_divides_by_batch_size and few else ""


@dataclass(frozen=True)
class BatchSizeInference:
    """Classifies numbers in the loss of one batch, by the code of the notebook.

    Attributes:
        inference: the evidence of the run.
        global_samples: number of samples in the global batch.
        dp_size: number of shards of a batch.
    """

    inference: SizeInference
    global_samples: int = 0
    dp_size: int = 1

    def is_shard_size(self, samples: int) -> bool:
        """Return whether a number equal to ``samples`` is a shard size; the same on all ranks.

        A factor of 1, which may stand for nothing, is one only if the code uses sizes.
        """
        if samples == 1 and not self.inference.code.scales_by_size:
            return False
        least = self.global_samples // self.dp_size
        uneven = self.global_samples % self.dp_size > 0
        return self.inference.is_size("shard", {least, least + 1} if uneven else {samples})

    def is_numel(self) -> bool:
        """Return whether a number equal to ``global_samples`` is the number of shard elements."""
        return self.inference.is_size("elements", {self.global_samples})

    def is_constant(self, number: float) -> bool:
        """Return whether ``number`` is a literal in the code."""
        return number in self.inference.code.numbers
