"""The leaves of autograd's graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor


def leaves_of_graph(outputs: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the leaves that gradients of the tensors in ``outputs`` reach."""
    nodes = [x.grad_fn for x in outputs if isinstance(x, Tensor) and x.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node: Any = nodes.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def reaches(outputs: Sequence[Any], leaves: Sequence[Tensor]) -> list[bool]:
    """Return for each of ``leaves`` whether gradients of ``outputs`` reach it."""
    found = {id(leaf) for leaf in leaves_of_graph(outputs)}
    return [id(leaf) in found for leaf in leaves]
