"""The reducers of a strategy's units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from . import collectives
from .reducer import Reducer, ReducerOptions
from .trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor

    from .base import Backward, Unit


class UnitReducers:
    """One reducer for each unit that trains; units that are frozen are watched for changes."""

    def __init__(self, options: ReducerOptions | None = None, overlap: bool = True) -> None:
        """Start without units.

        Args:
            options: how gradients are reduced.
            overlap: whether a single unit's buckets are launched as soon as they are full.
        """
        self._options = options or ReducerOptions()
        self._overlap = overlap
        self._reducers: list[Reducer] = []
        self._frozen: list[Trainable] = []

    def create(self, units: Sequence[Unit]) -> None:
        """Replace the reducers by those of ``units``."""
        self.close()
        trainable = [unit for unit in units if unit.trains]
        # With several units, ranks may differ in which of them a backward pass reaches first;
        # then buckets are launched at the end, unit by unit.
        overlap = self._overlap and len(trainable) == 1
        self._reducers = [Reducer(unit, overlap, self._options) for unit in trainable]
        self._frozen = [Trainable(unit) for unit in units if not unit.trains]

    def changed(self) -> bool:
        """Whether parameters were frozen, unfrozen, added, replaced or removed since."""
        watched = (*(reducer.trainable for reducer in self._reducers), *self._frozen)
        return any(each.changed() for each in watched)

    @property
    def assumes_static_graph(self) -> bool:
        """Whether a reducer has recorded which parameters every pass must use."""
        return any(reducer.used.static_ids is not None for reducer in self._reducers)

    def count_hooks(self, parameter: Tensor) -> int:
        """Return the number of reducers that have a hook on ``parameter``: one, or none."""
        return sum(id(parameter) in reducer.hooks for reducer in self._reducers)

    def begin(self, backward: Backward) -> None:
        """Prepare for the gradients of a backward pass."""
        for reducer in self._reducers:
            reducer.begin(backward)

    def end(self) -> bool:
        """Average the gradients of all units that the pass has reached on any rank.

        Ranks agree on the units first: the samples of each rank may reach different ones, and then
        ranks would wait for each other in the collectives of different units.

        Returns:
            Whether the pass reached any unit on this or another rank.
        """
        reached = [reducer.find_used() for reducer in self._reducers]
        if len(self._reducers) > 1 and any(reached):
            anywhere = torch.tensor(reached, dtype=torch.float32)  # on the CPU: no GPU has to wait
            collectives.all_reduce(anywhere, self._options.group).wait()
            reached = [bool(number) for number in anywhere.tolist()]
        for reducer, is_reached in zip(self._reducers, reached, strict=True):
            if is_reached:
                reducer.end()
            else:
                reducer.backward = None
        return any(reached)

    def close(self) -> None:
        """Remove all hooks."""
        for reducer in self._reducers:
            reducer.close()
        self._reducers, self._frozen = [], []
