"""The last batches that loaders have divided: names of the cell may hold parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from .batch_shard import BatchShard
from .batch_split import count_rows
from .batch_tensors import iter_tensors

LARGEST = 64 << 20
"""Bytes that a rank sends at most for the kernel to join the parts."""

MOST_LOADERS = 8
"""Loaders whose last batches are kept."""


@dataclass(frozen=True)
class LastBatch:
    """A collated batch, or rather this rank's ``shard`` of it."""

    batch: Any
    shard: BatchShard

    def names_in(self, variables: Mapping[str, Any]) -> list[str]:
        """Return the names that hold the shard or something in it, and so only a part."""
        if not self.shard.is_partial:
            return []
        ids = set(map(id, _containers(self.batch)))
        return [name for name, value in variables.items() if id(value) in ids]


class LastBatches:
    """The last batch of each loader."""

    def __init__(self) -> None:
        """Begin without a batch."""
        self._of_loaders: dict[object, LastBatch] = {}

    def add(self, loader: object, batch: Any, shard: BatchShard) -> None:
        """Replace the last batch of ``loader``."""
        self._of_loaders[loader] = LastBatch(batch, shard)
        if len(self._of_loaders) > MOST_LOADERS:
            del self._of_loaders[next(iter(self._of_loaders))]

    def names_in(self, variables: Mapping[str, Any], computed: Set[str]) -> list[str]:
        """Return the names that hold a part of one of the batches, or were computed from one.

        Args:
            variables: of the cell.
            computed: names that hold a row per sample, if they have as many rows as a shard.
        """
        held = self._held_in(variables)
        sizes = {each.shard.samples for each in self._of_loaders.values() if each.shard.is_partial}
        others = (name for name in variables if name in computed and name not in held)
        return [*held, *(name for name in others if count_rows(variables[name]) in sizes)]

    def part_of(self, variables: Mapping[str, Any], computed: Set[str]) -> dict[str, Any] | None:
        """Return what such names hold, if the samples are its rows.

        None if that of the batches is too much; what was computed from them is left out if it is.
        """
        held, left = self._held_in(variables), LARGEST
        part: dict[str, Any] = {}
        for name in self.names_in(variables, computed):
            value = variables[name]
            if name in held and count_rows(value) not in held[name]:
                continue
            left -= (size := sum(tensor.nbytes for tensor in iter_tensors(value)))
            if left >= 0:
                part[name] = value
            elif name in held:
                return None
            else:
                left += size
        return part

    def _held_in(self, variables: Mapping[str, Any]) -> dict[str, set[int]]:
        """Return the names that hold a part of a batch, and the samples of such parts."""
        held: dict[str, set[int]] = {}
        for last in self._of_loaders.values():
            for name in last.names_in(variables):
                held.setdefault(name, set()).add(last.shard.samples)
        return held


def _containers(item: Any, depth: int = 2) -> Iterator[Any]:
    """Yield a batch and the columns in it; numbers and strings are no columns."""
    if not isinstance(item, int | float | str | bytes | None):
        yield item
        if depth and isinstance(item, list | tuple | dict):
            for part in item.values() if isinstance(item, dict) else item:
                yield from _containers(part, depth - 1)
