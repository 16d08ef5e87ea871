"""The progress bars of a run."""

from __future__ import annotations

from nbmgpu.report.progress import Bar, bars

from .base import PanelView, RunMoment


class ProgressView(PanelView):
    """The progress bars of the training loader and of tqdm."""

    def payload(self, moment: RunMoment) -> list[Bar]:
        """Return the bars."""
        return bars(moment.view, moment.epochs)
