"""The failure of a run."""

from __future__ import annotations

from nbmgpu.report.failure_cause import Cause, cause

from .base import PanelView, RunMoment


class FailureView(PanelView):
    """Why the run failed, if it did."""

    def payload(self, moment: RunMoment) -> Cause | None:
        """Return the failure's cause, or None."""
        return cause(moment.run, moment.state)
