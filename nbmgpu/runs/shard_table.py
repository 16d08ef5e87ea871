"""Which rank stores which layer's parameters: a table with a row per layer, a column per rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .events import ParameterShards
    from .record import RunRecord
    from .view import RunView

MAX_ROWS = 40
"""Maximum number of rows; neighbouring layers share a row in deeper models."""


@dataclass(frozen=True)
class LayerRow:
    """What the ranks store of a layer, or of neighbouring layers.

    Attributes:
        name: of the layer, such as ``model.layers.0``; ``model.layers.0-15`` for several.
        elements: number of elements of its parameters.
        stored, nbytes: elements and bytes of them on each rank.
    """

    name: str
    elements: int
    stored: list[int]
    nbytes: list[int]


@dataclass(frozen=True)
class ShardTable:
    """Which rank stores which parameters between two steps.

    Attributes:
        strategy: name of the run's strategy.
        ranks: position of each rank in the mesh (``dp 0 tp 1``); empty without a mesh.
        rows: by layer, in the order of the model; none where ranks store all parameters, and until
            all ranks have reported theirs.
        total: the sum of all rows.
    """

    strategy: str
    ranks: list[str]
    rows: list[LayerRow]
    total: LayerRow

    def __repr__(self) -> str:
        """Return the table as text."""
        from .shard_rendering import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from .shard_rendering import as_html

        return as_html(self)


def shard_table(record: RunRecord, view: RunView) -> ShardTable:
    """Return what the ranks of a run have reported."""
    reports = [view.reports.shards[rank] for rank in sorted(view.reports.shards)]
    rows: list[LayerRow] = []
    # A rank may be the first to report another model.
    if len(reports) == record.world_size and len({tuple(r.layers) for r in reports}) == 1:
        rows = list(_rows(reports))
    total = _sum("all layers", rows, record.world_size)
    if len(rows) > MAX_ROWS:
        rows = [_join(group) for group in _equal_neighbours(rows)]
    if len(rows) > MAX_ROWS:
        count = -(-len(rows) // MAX_ROWS)
        rows = [_join(rows[at : at + count]) for at in range(0, len(rows), count)]
    ranks = [record.mesh_position(rank) for rank in range(record.world_size)]
    return ShardTable(record.options.strategy, ranks, rows, total)


def _rows(reports: list[ParameterShards]) -> Iterator[LayerRow]:
    first = reports[0]
    for at, (name, elements) in enumerate(zip(first.layers, first.elements, strict=True)):
        stored, nbytes = [r.stored[at] for r in reports], [r.nbytes[at] for r in reports]
        yield LayerRow(name, elements, stored, nbytes)


def _equal_neighbours(rows: list[LayerRow]) -> list[list[LayerRow]]:
    """Group neighbouring members of a container that are equal on all ranks."""

    def key(row: LayerRow) -> object:
        container, _, member = row.name.rpartition(".")
        name = container if member.isdigit() else row.name
        return dataclasses.replace(row, name=name).__dict__

    return [list(group) for _, group in groupby(rows, key)]


def _join(rows: list[LayerRow]) -> LayerRow:
    """Return one row for neighbouring layers."""
    first, last = rows[0].name, rows[-1].name
    container, _, member = last.rpartition(".")
    together = first.rpartition(".")[0] == container and member.isdigit()
    name = f"{first}-{member}" if together else f"{first} to {last}"
    return _sum(first if len(rows) == 1 else name, rows, len(rows[0].stored))


def _sum(name: str, rows: list[LayerRow], world_size: int) -> LayerRow:
    """Return the sum of ``rows``."""
    ranks = range(world_size)
    return LayerRow(
        name,
        sum(row.elements for row in rows),
        [sum(row.stored[rank] for row in rows) for rank in ranks],
        [sum(row.nbytes[rank] for row in rows) for rank in ranks],
    )
