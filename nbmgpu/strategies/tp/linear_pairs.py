"""Blocks of two linear layers between which activations can stay split.

The first layer's output features are split, and so are the second one's input features.  What is
between them must act on each feature by itself: an activation function, but no dropout, whose
random numbers depend on the shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import nn

ELEMENTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Mish, nn.Identity,
    nn.Hardswish, nn.Softplus, nn.ReLU6,
)  # fmt: skip

Pair = tuple[nn.Module, Literal["colwise", "rowwise"]]


def linear_pairs(root: nn.Module, ranks: int) -> Iterator[Pair]:
    """Yield the layers of each pair in ``root`` with their styles."""
    for module in root.modules():
        if type(module) is nn.Sequential:
            yield from _in_sequence(list(module), ranks)


def _in_sequence(layers: list[nn.Module], ranks: int) -> Iterator[Pair]:
    first: nn.Linear | None = None
    for layer in layers:
        if type(layer) is nn.Linear:
            if first is not None:
                yield first, "colwise"
                yield layer, "rowwise"
                first = None
            else:
                first = layer if layer.out_features % ranks == 0 else None
        elif not isinstance(layer, ELEMENTWISE):
            first = None
