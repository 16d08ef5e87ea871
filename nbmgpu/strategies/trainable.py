"""Which parameters of a unit train at this moment: asked before every backward pass."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Unit

TRAINS = attrgetter("requires_grad")


class Trainable:
    """Remembers what a unit trained when it was prepared, and tells when that has changed.

    A walk through a small model's modules costs more than its step.  So the tables in which
    modules keep parameters and modules are remembered, and only what stands in them is compared.
    """

    def __init__(self, unit: Unit) -> None:
        """Remember what ``unit`` trains now."""
        inner = [module for root in unit.modules for module in root.modules()]
        self._tables = [t for module in inner for t in (module._parameters, module._modules)]
        self._optimizers = unit.optimizers
        self.parameters = unit.parameters()
        self._there = self._members()
        self._trained = list(map(TRAINS, self.parameters))

    def changed(self) -> bool:
        """Tell whether parameters were frozen, unfrozen, added, replaced or taken away since."""
        return list(map(TRAINS, self.parameters)) != self._trained or self._members() != self._there

    def _members(self) -> list[int]:
        groups = [g["params"] for optimizer in self._optimizers for g in optimizer.param_groups]
        standing = chain.from_iterable(table.values() for table in self._tables)
        return list(map(id, chain(standing, *groups)))
