"""The metrics of a run as a table."""

from __future__ import annotations

from nbmgpu.report.metric_rows import MetricTable, metric_table

from .base import PanelView, RunMoment


class MetricsView(PanelView):
    """The last, lowest, highest and mean value of each metric."""

    heavy = True

    def payload(self, moment: RunMoment) -> MetricTable:
        """Return a row for each metric."""
        return metric_table(moment.view)
