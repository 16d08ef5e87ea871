"""The ranks of a run."""

from __future__ import annotations

from nbmgpu.report.rank_rows import RankRow, rows

from .base import PanelView, RunMoment


class RanksView(PanelView):
    """The state and resource usage of each rank; with several machines, see ``NodesView``."""

    def payload(self, moment: RunMoment) -> list[RankRow]:
        """Return a row for each rank; none for a run on several machines."""
        if moment.run.record.nodes > 1:
            return []
        return rows(moment.run, moment.now, bool(moment.stopping))
