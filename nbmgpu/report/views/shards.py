"""Which rank stores which parameters."""

from __future__ import annotations

from nbmgpu.runs.events import ParameterShards
from nbmgpu.runs.shard_table import ShardTable, shard_table

from .base import PanelView, RunMoment


class ShardsView(PanelView):
    """The share of each layer's parameters that each rank stores."""

    def __init__(self) -> None:
        """Start without a table."""
        self._reports: dict[int, ParameterShards] = {}
        self._table: ShardTable | None = None

    def payload(self, moment: RunMoment) -> ShardTable:
        """Return a row per layer and a column per rank."""
        reports = moment.view.reports.shards
        if self._table is None or reports != self._reports:
            self._reports = dict(reports)
            self._table = shard_table(moment.run.record, moment.view)
        return self._table
