"""What an engine trains: a unit as it was when the engine was created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmgpu.strategies.trainable import Trainable

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from nbmgpu.strategies.base import Unit


class TrainedUnit:
    """A unit, and what its optimizers updated when its engine was created.

    Attributes:
        unit: the unit, which the cell may change.
        optimizers: the optimizers that the unit had.
        parameters: the parameters with elements that these update, each once.
    """

    def __init__(self, unit: Unit) -> None:
        """Record what ``unit`` trains now."""
        self.unit = unit
        self.optimizers = list(unit.optimizers)
        self.parameters = _trained_parameters(unit)
        self._signature = _signature(unit)
        self._trainable = Trainable(unit)

    def matches(self, unit: Unit) -> bool:
        """Whether ``unit`` has the same optimizers with the same parameters."""
        return _signature(unit) == self._signature

    def changed(self) -> bool:
        """Whether parameters were frozen, unfrozen, added, replaced or removed since."""
        return self._trainable.changed()

    def has(self, optimizer: Optimizer) -> bool:
        """Whether ``optimizer`` is one of the unit's."""
        return any(each is optimizer for each in self.optimizers)


def _trained_parameters(unit: Unit) -> list[nn.Parameter]:
    groups = (group for optimizer in unit.optimizers for group in optimizer.param_groups)
    found: dict[int, nn.Parameter] = {
        id(p): p for group in groups for p in group["params"] if p.requires_grad and p.numel()
    }
    return list(found.values())


def _signature(unit: Unit) -> list[Any]:
    return [
        (id(o), [[id(p) for p in group["params"]] for group in o.param_groups])
        for o in unit.optimizers
    ]
