"""Which parameters of a unit are trained now; checked before every backward pass."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Unit

REQUIRES_GRAD = attrgetter("requires_grad")


class Trainable:
    """The parameters that a unit trained when it was prepared, to detect changes.

    Traversing the modules of a small model takes longer than its step.  So this keeps the dicts in
    which modules store parameters and submodules, and compares only their values.
    """

    def __init__(self, unit: Unit) -> None:
        """Record what ``unit`` trains now."""
        inner = [module for root in unit.modules for module in root.modules()]
        self._tables: list[dict[str, Any]] = [
            t for module in inner for t in (module._parameters, module._modules)
        ]
        self._optimizers = unit.optimizers
        self.parameters = unit.parameters()
        self._members = self._current_members()
        self._trained = list(map(REQUIRES_GRAD, self.parameters))

    def changed(self) -> bool:
        """Whether parameters were frozen, unfrozen, added, replaced or removed since."""
        if list(map(REQUIRES_GRAD, self.parameters)) != self._trained:
            return True
        members = self._current_members()
        return len(members) != len(self._members) or not all(map(is_, members, self._members))

    def _current_members(self) -> list[Any]:
        groups = [g["params"] for optimizer in self._optimizers for g in optimizer.param_groups]
        return [*chain.from_iterable(map(dict.values, self._tables)), *chain(*groups)]
