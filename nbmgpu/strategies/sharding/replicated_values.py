"""Replicated parameters and their optimizer states as they were before the training.

After a failure, sharded parameters have their values from before; so must the others, or the
notebook gets a model of which one part is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ReplicatedValues:
    """Copies of replicated parameters, which are small: of normalizations, and biases."""

    def __init__(self) -> None:
        """Start without parameters."""
        self._values: dict[int, tuple[Tensor, Tensor]] = {}
        self._states: dict[tuple[int, int], tuple[Any, dict[str, Any] | None]] = {}

    def keep(self, parameters: Iterable[Tensor], optimizers: Iterable[Optimizer]) -> None:
        """Copy the values that ``parameters`` have now, and their states; once for each."""
        optimizers = list(optimizers)
        for parameter in parameters:
            key = id(parameter)
            if key not in self._values:
                self._values[key] = parameter, parameter.detach().clone()
            for optimizer in optimizers:
                if (key, id(optimizer)) not in self._states:
                    state = optimizer.state.get(parameter)
                    before = None if state is None else {k: _pair(v) for k, v in state.items()}
                    self._states[key, id(optimizer)] = optimizer, before

    @torch.no_grad()
    def restore(self) -> None:
        """Write the values back, and drop states that are new."""
        for parameter, value in self._values.values():
            parameter.copy_(value)
        for (key, _), (optimizer, before) in self._states.items():
            parameter = self._values[key][0]
            if before is None:
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = {k: _restored(*pair) for k, pair in before.items()}

    def drop(self) -> None:
        """Drop all copies."""
        self._values.clear()
        self._states.clear()


def _pair(value: Any) -> tuple[Any, Any]:
    return value, value.detach().clone() if isinstance(value, Tensor) else value


def _restored(value: Any, before: Any) -> Any:
    return value.copy_(before) if isinstance(value, Tensor) else before
