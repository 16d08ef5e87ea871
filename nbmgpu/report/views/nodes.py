"""The machines of a run."""

from __future__ import annotations

from nbmgpu.report.node_rows import NodeRow, node_rows

from .base import PanelView, RunMoment


class NodesView(PanelView):
    """The state of the ranks of each machine; the browser requests the ranks of some of them."""

    def payload(self, moment: RunMoment) -> list[NodeRow]:
        """Return a row for each machine; none for a run on a single one."""
        return node_rows(moment.run, moment.now, bool(moment.stopping))
