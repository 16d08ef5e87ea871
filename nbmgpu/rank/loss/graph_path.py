"""The way from a loss to a node of its graph: what divides and multiplies on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from .autograd_nodes import MAX_CHAIN, children_of, kind_of, shape_of
from .reductions import BENDING, LINEAR, VIEWS
from .saved_sizes import is_number


@dataclass(frozen=True)
class Path:
    """What lies between the loss and a node: divisions, and what is not linear.

    ``factors`` are Python numbers that multiply; ``factor`` is the nearest product or ratio
    of two terms, and the term the node is in.  ``stacked`` is how many scalars are averaged of
    which the node is one.
    """

    depth: int = 0
    divisors: tuple[Any, ...] = ()
    factors: tuple[float, ...] = ()
    bent: bool = False
    factor: tuple[Any, int] | None = None
    stacked: int = 0

    def through(self, node: Any, index: int = 0) -> Path:
        """Return the path to the child ``index`` of ``node``."""
        kind, factors = kind_of(node), self.factors
        other = getattr(node, "_saved_other", None)
        if kind == "Mul" and other is not None and is_number(other):
            factors = (*factors, float(other))
        two = kind in ("Mul", "Div") and len(children_of(node)) > 1
        factor = (node, index) if two else self.factor
        bent = self.bent or kind in BENDING
        return Path(self.depth + 1, self._divided(node), factors, bent, factor, self.stacked)

    def within(self, inner: Path) -> Path:
        """Return this path with what divides or multiplies every element of a sum, as ``inner``."""
        # A share of one sample makes vectors of one element, of which ranks would differ.
        even = tuple(d for d in inner.divisors if is_number(d) or d.ndim == 0)
        return replace(self, divisors=even, factors=inner.factors)

    def sizes(self, samples: int) -> set[float]:
        """Return the numbers on the path that are ``samples``, or 1 over it."""
        numbers = [*self.factors, *(float(d) for d in self.divisors if is_number(d))]
        wanted = (samples, 1 / samples) if samples else ()
        return {n for n in numbers if any(math.isclose(n, w, rel_tol=1e-6) for w in wanted)}

    def _divided(self, node: Any) -> tuple[Any, ...]:
        other = getattr(node, "_saved_other", None) if kind_of(node) == "Div" else None
        return self.divisors if other is None else (*self.divisors, other)


def addends(node: Any, path: Path) -> list[Path]:
    """Return the path to each term that ``node`` adds up, with what divides the term before."""
    shape, found = tuple(node._saved_self_sym_sizes), []
    todo = [(child, path) for child in children_of(node)]
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        below, inner = todo.pop(0)
        if kind_of(below) in LINEAR and shape_of(below) == shape:
            todo += [(child, inner.through(below, i)) for i, child in enumerate(children_of(below))]
        else:
            found.append(path.within(inner))
    return found or [path]


def made_by(source: Any, path: Path) -> tuple[Any, ...]:
    """Return the kinds of nodes that made a term, and the numbers that multiply it.

    Of pieces of a batch that are treated alike they are the same.
    """
    kinds: list[str] = []
    for _ in range(MAX_CHAIN):
        if kind_of(source) not in VIEWS:
            kinds.append(kind_of(source))
        if not (below := children_of(source)):
            break
        source = below[0]
    return (*kinds, *path.factors)
