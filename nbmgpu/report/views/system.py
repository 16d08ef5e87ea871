"""What the ranks have used of the machine."""

from __future__ import annotations

from nbmgpu.report.system import SystemChart, system_charts

from .base import PanelView, RunMoment


class SystemView(PanelView):
    """Processor, memory, GPU and network of each rank over time."""

    heavy = True

    def payload(self, moment: RunMoment) -> list[SystemChart]:
        """Return a chart for each quantity."""
        return system_charts(moment.run)
