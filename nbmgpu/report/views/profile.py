"""What the ranks spent the time of their profiled steps on."""

from __future__ import annotations

from nbmgpu.runs.profile_table import ProfileTable, profile_table

from .base import PanelView, RunMoment


class ProfileView(PanelView):
    """The parts of the average profiled step of each rank."""

    def payload(self, moment: RunMoment) -> ProfileTable:
        """Return a row per rank; none without ``--profile``."""
        return profile_table(moment.run.folder, moment.view)
