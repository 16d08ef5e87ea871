"""Numbers in a loss that equal the size of a rank's share: a size, or a constant by chance?

``sum / len(x)`` is a mean over the share, ``sum / 4`` is not, and in the autograd graph
both are a number.  A number that divides is taken for a size if it equals one on every rank,
since people write means like that; one that multiplies is taken for a constant.  Where the
run cannot bear that out, people are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from . import notices
from .batch_sizes import divides_by_multiple

if TYPE_CHECKING:
    from .loss_graph import LossGraph

SIZES = {"len", "size", "shape", "numel", "nelement", "batch_size"}
"""Names by which code asks for the size of a batch."""


class Chances:
    """What the losses of a run have shown."""

    def __init__(self) -> None:
        """Have seen no loss."""
        self._divided: set[bool] = set()
        self._multiplied: set[bool] = set()
        self._sizes: set[float] = set()
        self._scaled: set[float] = set()
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
        self._multiple |= graph.multiple

    def scaled_penalty(self, code: Code) -> bool:
        """Tell whether a penalty was divided by a number that is most likely a size."""
        return bool(self._scaled - code.numbers) and bool(code.names & SIZES)

    def verdict(self, code: Code) -> str:
        """Return the notice to give, or nothing; ``code`` is what the notebook has of it."""
        contradicted = self._divided == {True, False}
        # A constant is always the same, and stands somewhere.
        constant = len(self._sizes) == 1 and self._sizes <= code.numbers and not code.names & SIZES
        if contradicted or (self._divided == {True} and constant):
            return notices.DIVIDED_BY_CHANCE
        if self._multiple and code.multiplies:
            return notices.DIVIDED_BY_MULTIPLE
        return notices.MULTIPLIED_BY_CHANCE if self._multiplied == {True} else ""


@dataclass(frozen=True)
class Code:
    """The names that code uses, and the numbers in it or behind its names.

    ``multiplies`` says that it divides by several times the size of a batch.
    """

    names: set[str]
    numbers: set[float]
    multiplies: bool

    @classmethod
    def of(cls, cell: str, namespace: Mapping[str, Any]) -> Code:
        """Look at a cell, and at the functions and classes of the notebook."""
        try:
            codes = [compile(cell, "<cell>", "exec", dont_inherit=True)]
        except SyntaxError:  # magics: of these nothing is known
            codes = []
        own = (v for v in namespace.values() if getattr(v, "__module__", "") == "__main__")
        for value in own:
            members = vars(value).values() if isinstance(value, type) else [value]
            codes += [member.__code__ for member in members if isinstance(member, FunctionType)]
        parts = list(_parts(codes))
        names = {name for code in parts for name in code.co_names}
        values = [value for code in parts for value in code.co_consts]
        values += [namespace.get(name) for name in names]
        numbers = {float(v) for v in values if isinstance(v, int | float) and v is not True}
        return cls(names, numbers, divides_by_multiple(cell))


def _parts(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    for code in codes:
        yield code
        yield from _parts(part for part in code.co_consts if isinstance(part, CodeType))
