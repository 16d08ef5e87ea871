"""The ranks of a run."""

from __future__ import annotations

from nbmgpu.report.rank_rows import RankRow, rows

from .base import PanelView, RunMoment


class RanksView(PanelView):
    """The state and resource usage of each rank."""

    def payload(self, moment: RunMoment) -> list[RankRow]:
        """Return a row for each rank."""
        return rows(moment.run, moment.now, bool(moment.stopping))
