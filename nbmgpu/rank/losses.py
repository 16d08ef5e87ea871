"""What a loss is made of, read from its autograd graph.

A loss on a rank covers the rank's slice of the global batch.  How the slices'
gradients combine to the global one depends on how the loss reduces over samples:

- a mean over the slice counts by its samples, n_r / n;
- a mean over what is not ignored (``cross_entropy`` with ``ignore_index`` or class
  weights) counts by its total weight, which the graph has saved;
- a sum divided by a count of its own (``(l * mask).sum() / mask.sum()``) counts by
  that count;
- a plain sum adds up.

All four are exact.  A loss that mixes them with different weights has no single
weight, and is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["mean", "sum"]

MAX_NODES = 400
NLL = ("NllLossBackward0", "NllLoss2DBackward0", "NllLossNdBackward0")
MEAN, SUM = 1, 2
"""Values of ``_saved_reduction`` in autograd's loss nodes (ATen's Reduction enum)."""


@dataclass
class LossGraph:
    """The scalar part of a loss's graph: everything between it and its reductions.

    ``nodes`` maps an autograd node to its distance from the loss; ``kinds`` are the
    reductions met.  ``counts`` are the weights of means over a count of their own, with
    the number of elements that the count would be if nothing were left out (or None).

    What is read here is the structure of the graph, which is the same on all ranks, so
    that all of them weigh alike.
    """

    nodes: dict[Any, int] = field(default_factory=dict)
    counts: list[tuple[Tensor, int | None]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    @property
    def reduction(self) -> Reduction:
        """How slices combine: ``sum`` where nothing averages over samples."""
        return "sum" if self.kinds == {"sum"} else "mean"

    def doubt(self) -> bool | Tensor:
        """Tell whether the terms of the loss would need different weights.

        A tensor (bool, shape ()) when the answer depends on values on a device.
        """
        if len(self.kinds) + max(len(self.counts) - 1, 0) < 2:
            return False
        if "sum" in self.kinds:
            return True
        first, elements = self.counts[0]
        if "mean" in self.kinds and elements is None:
            return True
        differ = [count != first for count, _ in self.counts[1:]]
        if "mean" in self.kinds:
            differ.append(first != elements)
        return sum(differ) > 0  # type: ignore[no-any-return]


def read_graph(loss: Tensor, whole: int) -> LossGraph:
    """Walk from ``loss``, of shape (), to the nodes that reduce over samples.

    Args:
        loss: the tensor that ``backward()`` is called on.
        whole: samples in the global batch.
    """
    graph = LossGraph()
    stack: list[tuple[Any, int, Any]] = [(loss.grad_fn, 0, None)]
    while stack and len(graph.nodes) < MAX_NODES:
        node, depth, divisor = stack.pop(0)
        if node is None or node in graph.nodes or not _is_scalar(node):
            continue
        graph.nodes[node] = depth
        if _read_reduction(graph, node, divisor, whole):
            continue
        if node.name() == "DivBackward0":
            divisor = node._saved_other if node._saved_other is not None else divisor
        stack.extend((child, depth + 1, divisor) for child, _ in node.next_functions)
    return graph


def _is_scalar(node: Any) -> bool:
    """Tell whether the node's forward output has one element."""
    metadata = node._input_metadata
    return bool(metadata) and all(n == 1 for n in metadata[0].shape)


def _read_reduction(graph: LossGraph, node: Any, divisor: Any, whole: int) -> bool:
    """Record what ``node`` reduces; return whether it is a reduction at all."""
    name = node.name()
    if name in NLL and node._saved_reduction == MEAN:
        graph.counts.append((node._saved_total_weight, node._saved_target.numel()))
        graph.kinds.add("counted")
        return True
    if hasattr(node, "_saved_reduction"):
        kind = {MEAN: "mean", SUM: "sum"}.get(node._saved_reduction)
        if kind == "sum":
            _read_sum(graph, divisor, whole)
        elif kind:
            graph.kinds.add(kind)
        return kind is not None
    if name.startswith("MeanBackward"):
        if not _is_penalty(node):
            graph.kinds.add("mean")
        return True
    if name.startswith("SumBackward"):
        if not _is_penalty(node):
            _read_sum(graph, divisor, whole)
        return True
    return False


def _read_sum(graph: LossGraph, divisor: Any, whole: int) -> None:
    """Record a sum, divided by ``divisor`` further up (a tensor of shape (), or None)."""
    if divisor is None or divisor.numel() != 1:
        graph.kinds.add("sum")
    elif _is_number(divisor) and float(divisor) == whole:
        graph.kinds.add("sum")  # divided by the size of the global batch, a constant
    else:
        graph.counts.append((divisor, None))
        graph.kinds.add("counted")


def _is_number(divisor: Tensor) -> bool:
    """Tell whether a saved divisor was a Python number: autograd keeps those as int64 or float64."""
    return divisor.device.type == "cpu" and str(divisor.dtype) in ("torch.int64", "torch.float64")


def _is_penalty(node: Any) -> bool:
    """Tell whether a reduction is over a parameter (weight decay), not over samples."""
    shape = tuple(node._saved_self_sym_sizes)
    for _ in range(8):
        children = [child for child, _ in node.next_functions if child is not None]
        if len({id(child) for child in children}) != 1:
            return False
        node = children[0]
        if node.name() == "torch::autograd::AccumulateGrad":
            return tuple(node.variable.shape) == shape
    return False


@dataclass(frozen=True)
class Losses:
    """The losses of a backward pass that the cell can still read.

    ``name`` and ``shown`` are the variable nearest to where ``backward`` was called, for
    the curve; ``all`` are every loss of shape () that takes part, the root first.
    """

    name: str
    shown: Tensor
    all: list[Tensor]


def find_losses(loss: Tensor, graph: LossGraph, variables: dict[str, Any]) -> Losses:
    """Find which of the cell's ``variables`` are losses in ``graph``."""
    import torch

    found = [
        (graph.nodes[value.grad_fn], name, value)
        for name, value in variables.items()
        if type(value) is torch.Tensor
        and value.dim() == 0
        and value.grad_fn in graph.nodes
        and not name.startswith("_")
    ]
    found.sort(key=lambda item: item[0])
    _, name, shown = found[0] if found else (0, "loss", loss)
    others = {id(value): value for _, _, value in found if value is not loss}
    return Losses(name, shown, [loss, *others.values()])
