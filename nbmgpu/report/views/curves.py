"""The curves of a run: its metrics, and its throughput."""

from __future__ import annotations

from nbmgpu.report.curves import Curves, Throughput, curves, throughput

from .base import PanelView, RunMoment


class CurvesView(PanelView):
    """The metrics over steps."""

    heavy = True

    def payload(self, moment: RunMoment) -> Curves:
        """Return a curve for each metric."""
        return curves(moment.view)


class ThroughputView(PanelView):
    """Samples per second and step times."""

    heavy = True

    def payload(self, moment: RunMoment) -> Throughput:
        """Return the throughput and the slowest rank."""
        return throughput(moment.run)
