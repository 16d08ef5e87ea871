"""The last batches that loaders have divided: names of the cell may hold parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import Tensor

from nbmgpu.environment.headers import SampleDims
from nbmgpu.serialization.value_tree import leaves_of

from .batch_shard import BatchShard
from .batch_split import count_rows
from .batch_tensors import iter_tensors

if TYPE_CHECKING:
    from nbmgpu.rank.batch_dependence.step_values import StepValues

LARGEST = 64 << 20
"""Bytes that a rank sends at most for the kernel to join the parts."""

MOST_LOADERS = 8
"""Loaders whose last batches are kept."""


@dataclass(frozen=True)
class LastBatch:
    """A collated batch, or rather this rank's ``shard`` of it.

    Attributes:
        batch: what the loop gets; of the previous one, references to its tensors.
        shard: the number of samples in it.
        dim: the dimension of the samples in each of its tensors; None for a batch of a loader, the
            columns of which have them along the first, or are lists of them.
    """

    batch: Any
    shard: BatchShard
    dim: int | None = None

    def names_in(self, variables: Mapping[str, Any]) -> list[str]:
        """Return the names that hold the shard or something in it, and so only a part."""
        if not self.shard.is_partial:
            return []
        ids = {id(each() if isinstance(each, ref) else each) for each in _containers(self.batch)}
        return [name for name, value in variables.items() if id(value) in ids and value is not None]

    def as_previous(self) -> LastBatch:
        """Return the same without keeping its tensors, once there is another batch."""
        return replace(self, batch=[ref(tensor) for tensor in iter_tensors(self.batch)])

    def dims_of(self, value: Any) -> SampleDims | None:
        """Return the dimension of the samples in each leaf of what is in the batch.

        None if not all leaves are tensors with the samples along their first dimension.
        """
        leaves = leaves_of(value) or ()
        if self.dim is not None:
            return (self.dim,) * len(leaves)
        are_rows = all(_rows(leaf) == self.shard.samples for leaf in leaves)
        return (0,) * len(leaves) if leaves and are_rows else None

    def has_samples(self, value: Any) -> bool:
        """Return whether the samples can be seen in what is in the batch."""
        return self.dim is not None or count_rows(value) == self.shard.samples


class LastBatches:
    """The last batch of each loader, and what the last steps have computed of them."""

    def __init__(self, step_values: StepValues) -> None:
        """Begin without a batch.

        Args:
            step_values: what variables of the cell held after a step.
        """
        self._of_loaders: dict[object, LastBatch] = {}
        self._previous: dict[object, LastBatch] = {}
        self._step_values = step_values

    def add(self, loader: object, batch: LastBatch) -> None:
        """Replace the last batch of ``loader``.

        A loop over ``zip(loader, other)`` may end with the batch before the last.
        """
        if (before := self._of_loaders.get(loader)) is not None:
            self._previous[loader] = before.as_previous()
        self._of_loaders[loader] = batch
        if len(self._of_loaders) > MOST_LOADERS:
            oldest = next(iter(self._of_loaders))
            del self._of_loaders[oldest]
            self._previous.pop(oldest, None)

    def names_in(self, variables: Mapping[str, Any]) -> dict[str, SampleDims | None]:
        """Return the names that hold a part of one of the batches, or were computed from one.

        Returns:
            The dimension of the samples in each leaf of a value, see ``LastBatch.dim``.
        """
        held = self._held_in(variables)
        dims = {name: last.dims_of(variables[name]) for name, last in held.items()}
        return dims | self._computed_in(variables, held)

    def part_of(self, variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what such names hold, if the samples are its rows.

        None if the batches are too large; of what was computed, only what there is room for.
        """
        held = self._held_in(variables)
        part = {n: variables[n] for n, last in held.items() if last.has_samples(variables[n])}
        room = LARGEST - sum(tensor.nbytes for tensor in iter_tensors(list(part.values())))
        if room < 0:
            return None
        for name in self._computed_in(variables, held):
            leaves = leaves_of(variables[name]) or ()
            size = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
            if size <= room:
                part[name] = variables[name]
                room -= size
        return part

    def _held_in(self, variables: Mapping[str, Any]) -> dict[str, LastBatch]:
        """Return the names that hold a part of a batch, and the batch."""
        batches = [*self._previous.values(), *self._of_loaders.values()]
        return {name: last for last in batches for name in last.names_in(variables)}

    def _computed_in(
        self, variables: Mapping[str, Any], held: Mapping[str, LastBatch]
    ) -> dict[str, SampleDims | None]:
        """Return the names of what the last steps have computed of their shards."""
        found: dict[str, SampleDims | None] = {}
        for name, value in self._step_values.of_names.items():
            last = self._of_loaders.get(self._step_values.loader_of[name])
            if last is None or name not in variables or name in held or not last.shard.is_partial:
                continue
            if value.has_samples(variables[name], last.shard.samples):
                found[name] = tuple(None if at is None else at.dim for at in value.dims)
        return found


def _rows(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else -1


def _containers(item: Any, depth: int = 2) -> Iterator[Any]:
    """Yield a batch and the columns in it; numbers and strings are no columns."""
    if not isinstance(item, int | float | str | bytes | None):
        yield item
        if depth and isinstance(item, list | tuple | dict):
            for part in item.values() if isinstance(item, dict) else item:
                yield from _containers(part, depth - 1)
