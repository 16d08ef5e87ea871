"""Words for what differs between ranks and one device, in notices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbmgpu.runs.number_topics import OTHER_GRADIENTS, OTHER_PARAMETERS, OTHER_VALUE

from .values import Value

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.session import TrainingSession

    from .comparison import Difference, ValueDifference

LEAST_PERCENT = 1e-2
"""Differences below have their first digit in notices, whatever it is."""


def describe_gradient(
    difference: Difference,
    session: TrainingSession,
    optimizer: Optimizer,
    namespace: Mapping[str, Any],
) -> str:
    """Return what the cell does whose gradients differ, as a predicate.

    Args:
        difference: at the step of ``optimizer``.
        session: knows the modules, which have names for parameters.
        optimizer: whose parameters differ.
        namespace: the variables of the cell.
    """
    if difference.parameter is None:
        return OTHER_PARAMETERS.format(step=difference.step)
    name = _name_of(difference.parameter, session, optimizer, namespace)
    error = format_error(difference.error)
    return OTHER_GRADIENTS.format(step=difference.step, name=name, error=error)


def describe_value(difference: ValueDifference) -> str:
    """Return what the cell does that keeps another value, as a predicate."""
    return OTHER_VALUE.format(
        path=difference.value.path,
        here=format_value(difference.value.here),
        there=format_value(difference.value.there),
        step=difference.step,
    )


def format_value(value: Value) -> str:
    """Return a value for a notice: ``44``, ``0.1235``, ``'n=4'``."""
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def format_error(error: float) -> str:
    """Return how far a gradient is off: ``13.0% off``."""
    if error < LEAST_PERCENT:
        return f"{100 * error:.1g}% off"
    return f"{error:.1%} off" if math.isfinite(error) else "not finite on one side only"


def _name_of(
    index: int, session: TrainingSession, optimizer: Optimizer, namespace: Mapping[str, Any]
) -> str:
    """Return the name of a parameter of ``optimizer``: ``model.head.weight``."""
    parameter = [p for group in optimizer.param_groups for p in group["params"]][index]
    for unit in session.trained.units:
        for module in unit.modules:
            for name, other in module.named_parameters():
                if other is parameter:
                    of_cell = (n for n, v in namespace.items() if v is module and n[0] != "_")
                    return f"{next(of_cell, type(module).__name__)}.{name}"
    return f"parameter {index}"
