"""The last batches that loaders have divided: names of the cell may hold parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    def names_in(self, variables: Mapping[str, Any]) -> list[str]:
        """Return the names that hold a part of one of the batches."""
        return [name for last in self._of_loaders.values() for name in last.names_in(variables)]

    def part_of(self, variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what such names hold, if the samples are its rows; None if it is too much."""
        part = {
            name: variables[name]
            for last in self._of_loaders.values()
            for name in last.names_in(variables)
            if count_rows(variables[name]) == last.shard.samples
        }
        size = sum(tensor.nbytes for tensor in iter_tensors(list(part.values())))
        return part if size <= LARGEST else None


def _containers(item: Any, depth: int = 2) -> Iterator[Any]:
    """Yield a batch and the columns in it; numbers and strings are no columns."""
    if not isinstance(item, int | float | str | bytes | None):
        yield item
        if depth and isinstance(item, list | tuple | dict):
            for part in item.values() if isinstance(item, dict) else item:
                yield from _containers(part, depth - 1)
