"""The losses of a backward pass that the cell can still read, and their names there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .loss_graph import LossGraph

SMALL = 16
"""Parts up to which a container of the cell is looked into for losses."""


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
    found = [
        (graph.nodes[value.grad_fn], name, value)
        for name, value in _tensors(variables)
        if value.dim() == 0 and value.grad_fn in graph.nodes
    ]
    found.sort(key=lambda item: item[0])
    _, name, shown = found[0] if found else (0, "loss", loss)
    others = {id(value): value for _, _, value in found if value is not loss}
    return Losses(name, shown, [loss, *others.values()])


def _tensors(variables: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among ``variables``, and those one level inside them (``out.loss``)."""
    for name, value in variables.items():
        if name.startswith("_"):
            continue
        if type(value) is Tensor:
            yield name, value
        elif (parts := _parts_of(type(value))) is not None:  # type: ignore[arg-type]
            for inner, part in parts(value):
                if type(part) is Tensor:
                    yield inner or name, part


Parts = Callable[[Any], Iterable[tuple[str, Any]]]
"""Returns the parts of a small container or object, with the names that they have there."""


@functools.lru_cache(maxsize=1024)
def _parts_of(cls: type) -> Parts | None:
    """Return how to look into what is a ``cls``; None for what has no parts.

    Asked of every variable of the notebook at every step, which for most is all it costs.
    """
    if issubclass(cls, Mapping):
        return _items
    if issubclass(cls, list | tuple):
        return _entries
    # Slots are not looked into.
    return _attributes if cls.__module__ == "__main__" and cls.__dictoffset__ else None


def _items(value: Mapping[Any, Any]) -> Iterable[tuple[str, Any]]:
    return [(str(key), part) for key, part in value.items()] if len(value) <= SMALL else []


def _entries(value: list[Any] | tuple[Any, ...]) -> Iterable[tuple[str, Any]]:
    return [("", part) for part in value] if len(value) <= SMALL else []


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    return list(vars(value).items())
