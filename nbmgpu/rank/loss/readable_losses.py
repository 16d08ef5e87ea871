"""The losses of a backward pass that variables of the cell still refer to, and their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .loss_graph import LossGraph

MAX_ITEMS = 16
"""Items up to which a container of the cell is searched for losses."""


@dataclass(frozen=True)
class ReadableLosses:
    """The losses of a backward pass that the cell can still read.

    Attributes:
        name: name of the variable nearest to the root on which ``backward`` was called.
        logged: the tensor of that variable, for the loss curve.
        tensors: all losses of shape () in the graph, the root first.
    """

    name: str
    logged: Tensor
    tensors: list[Tensor]


def find_readable_losses(
    loss: Tensor, graph: LossGraph, variables: dict[str, Any]
) -> ReadableLosses:
    """Find which of the cell's ``variables`` are losses in ``graph``."""
    found = [
        (graph.nodes[value.grad_fn], name, value)
        for name, value in _tensors(variables)
        if value.dim() == 0 and value.grad_fn in graph.nodes
    ]
    found.sort(key=lambda item: item[0])
    _, name, logged = found[0] if found else (0, "loss", loss)
    others = {id(value): value for _, _, value in found if value is not loss}
    return ReadableLosses(name, logged, [loss, *others.values()])


def _tensors(variables: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among ``variables``, and those one level inside them (``out.loss``)."""
    for name, value in variables.items():
        if name.startswith("_"):
            continue
        if type(value) is Tensor:
            yield name, value
        elif (items := _items_function(type(value))) is not None:  # type: ignore[arg-type]
            for inner, item in items(value):
                if type(item) is Tensor:
                    yield inner or name, item


ItemsFunction = Callable[[Any], Iterable[tuple[str, Any]]]
"""Returns the items of a small container or object, with their names."""


@functools.lru_cache(maxsize=1024)
def _items_function(cls: type) -> ItemsFunction | None:
    """Return the function that lists the items of a ``cls``, or None if it has none.

    It is called for every variable of the notebook at every step, so most variables cost no more
    than this cached lookup.
    """
    if issubclass(cls, Mapping):
        return _mapping_items
    if issubclass(cls, list | tuple):
        return _sequence_items
    # Slots are not searched.
    return _attributes if cls.__module__ == "__main__" and cls.__dictoffset__ else None


def _mapping_items(value: Mapping[Any, Any]) -> Iterable[tuple[str, Any]]:
    return [(str(key), item) for key, item in value.items()] if len(value) <= MAX_ITEMS else []


def _sequence_items(value: list[Any] | tuple[Any, ...]) -> Iterable[tuple[str, Any]]:
    return [("", item) for item in value] if len(value) <= MAX_ITEMS else []


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    return list(vars(value).items())
