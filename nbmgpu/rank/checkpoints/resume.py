"""Puts a cell back to where a checkpoint was written, once it has run to that iteration again."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from nbmgpu.errors import NbmgpuError, ResumeError, format_message
from nbmgpu.runs.checkpoint import FROM_BEGINNING, RANDOM, STATES, VALUES, Checkpoint
from nbmgpu.runs.checkpoint_state import Copies, loads
from nbmgpu.strategies.base import Strategy

from .capture import load_states
from .frames import UserFrame
from .in_place import InPlaceUpdate
from .loops import ActiveLoop
from .module_attributes import ATTRIBUTES, restore_module_attributes
from .references import find_references


class Resume:
    """The way to the position of a checkpoint.

    Attributes:
        description: where the checkpoint was written.
        random: the random states of each of its ranks.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Read where ``checkpoint`` was written.

        Raises:
            CheckpointError: a file is missing or damaged.
            OwnershipError: another user may have written it.
        """
        checkpoint.require_own()
        self._checkpoint = checkpoint
        self.description = checkpoint.description
        self.random = pickle.loads(checkpoint.read(RANDOM))

    def skips(self, active: Sequence[ActiveLoop]) -> bool:
        """Return whether the iteration that the innermost of ``active`` begins is over already.

        So are all iterations of an earlier loop that has trained.  Other earlier loops, which may
        build a model or read data, run again.

        Raises:
            ResumeError: the cell has taken another way than when the checkpoint was written.
        """
        loop = active[-1]
        if loop.site.is_while:
            return False
        if not self.is_on_way(active):
            return self.is_before(active)
        count = self.description.levels[len(active)].count
        if loop.count > count:
            what = f"The loop in {loop.site} has passed iteration {count}"
            reason = "The cell has taken another way than when the checkpoint was written"
            raise ResumeError(format_message(what, reason, FROM_BEGINNING))
        return loop.count < count

    def is_before(self, active: Sequence[ActiveLoop]) -> bool:
        """Return whether the innermost loop had trained and was over at the checkpoint."""
        around, levels = active[:-1], self.description.levels
        if not self.is_on_way(around) or (around and not self._is_in_iteration(around)):
            return False
        return active[-1].identity in levels[len(around)].trained

    def is_reached(self, active: Sequence[ActiveLoop]) -> bool:
        """Return whether the running loops are where the checkpoint was written."""
        return len(active) + 1 == len(self.description.levels) and self.is_on_way(active)

    def is_next(self, active: Sequence[ActiveLoop]) -> bool:
        """Return whether the next iteration is the one at which the checkpoint was written."""
        count = self.description.levels[-1].count
        return self.is_reached(active) and bool(active) and active[-1].count == count - 1

    def is_on_way(self, active: Sequence[ActiveLoop]) -> bool:
        """Return whether the running loops are those of the checkpoint, in its iterations.

        The innermost loop may be in any iteration.
        """
        target = [level.loop for level in self.description.levels[1 : len(active) + 1]]
        return [loop.identity for loop in active] == target and self._is_in_iteration(active[:-1])

    def _is_in_iteration(self, active: Sequence[ActiveLoop]) -> bool:
        levels = self.description.levels[1:]
        return all(
            loop.site.is_while or loop.count == level.count
            for loop, level in zip(active, levels, strict=False)
        )

    def bind_missing(self, frames: Sequence[UserFrame], variables: Mapping[str, Any]) -> None:
        """Bind names that code after a skipped loop may read, which the loop would have bound."""
        values = self._values(find_references(variables).get)
        for frame in frames:
            frame.assign({n: v for n, v in values.items() if n not in variables})

    def _values(self, resolve: Callable[[str], Any]) -> dict[str, Any]:
        data = self._checkpoint.read(VALUES)
        values: dict[str, Any] = loads(data, Copies(self._tensors), resolve)
        return values

    @functools.cached_property
    def _tensors(self) -> list[Tensor]:
        return self._checkpoint.map_tensors(self.description.tensors.total)

    def apply(
        self, frames: Sequence[UserFrame], variables: Mapping[str, Any], strategy: Strategy
    ) -> None:
        """Set states and variables to those of the checkpoint; all ranks call it together.

        Args:
            frames: of the user's code.
            variables: theirs, by name.
            strategy: shards what the states are loaded into.

        Raises:
            ResumeError: an object of the checkpoint is missing here, or does not fit.
        """
        references = find_references(variables)
        try:
            states = loads(self._checkpoint.read(STATES), self._tensors)
            load_states(states, references, strategy)
            del states
            values = self._values(references.__getitem__)
            update = InPlaceUpdate()
            restore_module_attributes(values[ATTRIBUTES], references, update)
        except NbmgpuError:
            raise
        except KeyError as missing:
            what = f"The checkpoint has {missing}, and the cell does not"
            raise ResumeError(format_message(what, CHANGED, FROM_BEGINNING)) from None
        except Exception as error:
            what = f"A state of the checkpoint does not fit: {type(error).__name__}: {error}"
            raise ResumeError(format_message(what, CHANGED, FROM_BEGINNING)) from error
        updated = {name: update(variables.get(name), value) for name, value in values.items()}
        for frame in frames:
            frame.assign(updated)
        del self._tensors  # the last use of the files


CHANGED = "What the cell reads has changed since: define it as it was in the run that is resumed"
