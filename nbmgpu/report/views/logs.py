"""The logs of a run."""

from __future__ import annotations

from nbmgpu.report.log_pages import LogSize

from .base import PanelView, RunMoment


class LogsView(PanelView):
    """The sizes of the ranks' logs; the browser requests pages of them."""

    heavy = True

    def payload(self, moment: RunMoment) -> list[LogSize]:
        """Return the size of each rank's log."""
        return moment.logs.sizes()
