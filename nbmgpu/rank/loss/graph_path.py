"""The path from a loss to a node of its graph: the divisions and multiplications along it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from .autograd_nodes import MAX_VISITS, input_nodes, op_name, output_shape
from .reductions import LINEAR_OPS, NONLINEAR_OPS, VIEW_OPS
from .saved_sizes import is_number


@dataclass(frozen=True)
class GraphPath:
    """The operations between the loss and a node.

    Attributes:
        depth: number of nodes between.
        divisors: numbers and tensors that divide.
        factors: Python numbers that multiply.
        is_nonlinear: whether one of the operations is not linear.
        product: the nearest product or ratio of two terms, and the index of the operand that
            contains the node.
        num_stacked: number of scalars in the average that contains the node; 0 if there is none.
    """

    depth: int = 0
    divisors: tuple[Any, ...] = ()
    factors: tuple[float, ...] = ()
    is_nonlinear: bool = False
    product: tuple[Any, int] | None = None
    num_stacked: int = 0

    def extend(self, node: Any, index: int = 0) -> GraphPath:
        """Return the path to the input ``index`` of ``node``."""
        op, factors = op_name(node), self.factors
        other = getattr(node, "_saved_other", None)
        if op == "Mul" and other is not None and is_number(other):
            factors = (*factors, float(other))
        is_product = op in ("Mul", "Div") and len(input_nodes(node)) > 1
        product = (node, index) if is_product else self.product
        nonlinear = self.is_nonlinear or op in NONLINEAR_OPS
        divisors = self._divisors_with(node)
        return GraphPath(self.depth + 1, divisors, factors, nonlinear, product, self.num_stacked)

    def with_elementwise(self, inner: GraphPath) -> GraphPath:
        """Return this path with the divisors and factors that ``inner`` applies to every element.

        ``inner`` is a path inside the input of a sum.
        """
        # Vectors are left out: a shard of one sample has vectors of one element, and ranks would
        # disagree.
        scalars = tuple(d for d in inner.divisors if is_number(d) or d.ndim == 0)
        return replace(self, divisors=scalars, factors=inner.factors)

    def shard_sizes(self, samples: int) -> set[float]:
        """Return the numbers on the path that equal ``samples`` or 1 / ``samples``."""
        numbers = [*self.factors, *(float(d) for d in self.divisors if is_number(d))]
        wanted = (samples, 1 / samples) if samples else ()
        return {n for n in numbers if any(math.isclose(n, w, rel_tol=1e-6) for w in wanted)}

    def _divisors_with(self, node: Any) -> tuple[Any, ...]:
        other = getattr(node, "_saved_other", None) if op_name(node) == "Div" else None
        return self.divisors if other is None else (*self.divisors, other)


def term_paths(node: Any, path: GraphPath) -> list[GraphPath]:
    """Return the path to each term that the sum ``node`` adds, with the term's own divisors."""
    shape, found = tuple(node._saved_self_sym_sizes), []
    queue = [(child, path) for child in input_nodes(node)]
    for _ in range(MAX_VISITS):
        if not queue:
            break
        child, inner = queue.pop(0)
        if op_name(child) in LINEAR_OPS and output_shape(child) == shape:
            queue += [(each, inner.extend(child, i)) for i, each in enumerate(input_nodes(child))]
        else:
            found.append(path.with_elementwise(inner))
    return found or [path]


def term_signature(source: Any, path: GraphPath) -> tuple[Any, ...]:
    """Return the operations that made a term, and the numbers that multiply it.

    Pieces of a batch that are computed in the same way have the same signature.
    """
    ops: list[str] = []
    for _ in range(MAX_VISITS):
        if op_name(source) not in VIEW_OPS:
            ops.append(op_name(source))
        if not (children := input_nodes(source)):
            break
        source = children[0]
    return (*ops, *path.factors)
