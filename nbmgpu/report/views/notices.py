"""The notices of a run, such as where results differ from one device."""

from __future__ import annotations

from nbmgpu.report import text_format

from .base import PanelView, RunMoment


class NoticesView(PanelView):
    """The notices of the run."""

    def payload(self, moment: RunMoment) -> list[str]:
        """Return their texts, in order."""
        return text_format.notices(moment.view)
