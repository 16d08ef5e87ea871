"""All ranks of a run on several nodes, as the head sees them through the store."""

from __future__ import annotations

import signal
import time
from typing import ClassVar

from nbmgpu.engines.rank_processes import RankProcesses
from nbmgpu.rank.store.exit_reports import EXITS, LOST, ExitReports
from nbmgpu.rank.store.store_client import StoreClient
from nbmgpu.runs.run import Run

from . import NODES, PROBLEMS, SIGNAL
from .node_processes import NodeProcesses

GRACE = 1.0
"""Seconds in which reports and output of node launchers arrive after they have ended."""

KILL_TIMEOUT = 10.0
"""Seconds after which ranks that were killed count as ended, also if no node reports it."""

JOIN_TIMEOUT = 60.0
"""Seconds in which all nodes reach the head, once the first one has."""

NOT_JOINED = "{joined} of {nodes} nodes ({names}) could start ranks. The others say: {output}"
NODE_LOST = (
    "The node {nodes} is lost with its ranks: it is down or cannot be reached, or all processes of "
    "the run there were killed"
)
NODES_LOST = (
    "The nodes {nodes} are lost with their ranks: they are down or cannot be reached, or all "
    "processes of the run there were killed"
)
ENDED = "The launchers of all nodes have ended before their ranks had. They say: {output}"


class RemoteRanks(RankProcesses):
    """The ranks of a run, started by one node launcher per node."""

    patience: ClassVar[float] = 4.0
    """Signals and files cross a network, and nodes may be busy: Ray's workers have low priority."""

    def __init__(self, run: Run, nodes: NodeProcesses, store: StoreClient) -> None:
        """Observe the ranks of ``run``, whose ``nodes`` have been started."""
        self._left = set(range(run.record.world_size))
        self._expected = run.record.nodes
        self._nodes = nodes
        self._store = store
        self._signals = 0
        self._ended: dict[int, int] = {}
        self._noticed = 0.0
        self._lost: dict[str, None] = {}
        self._killed: float | None = None
        self._joined: list[str] = []
        self._first_joined: float | None = None
        self._failed: float | None = None
        self._nodes_ended: float | None = None
        for key in (NODES, EXITS, LOST, PROBLEMS):
            store.append(key, "")

    def alive(self) -> bool:
        """Return whether there is a rank whose end was not reported."""
        return bool(self._left)

    def poll(self) -> list[tuple[int, int]]:
        """Return what node launchers have reported; ranks of lost nodes count as killed."""
        if not self._ended:
            reports = ExitReports.read(self._store)
            self._ended = {n: code for n, code in reports.codes.items() if n in self._left}
            self._lost |= {reports.nodes[n]: None for n in self._ended if n in reports.nodes}
            self._noticed = time.monotonic()
        if self._ended and not self._nodes.have_copied(self._noticed):  # their last events
            return self._given_up()
        ended, self._ended = list(self._ended.items()), {}
        self._left.difference_update(rank for rank, _ in ended)
        if self._left and self._nodes.ended and not ended:
            self._nodes_ended = self._nodes_ended or time.monotonic()
            if time.monotonic() - self._nodes_ended > GRACE:
                ended = [(rank, -signal.SIGKILL) for rank in sorted(self._left)]
                self._left.clear()
        return ended or self._given_up()

    def _given_up(self) -> list[tuple[int, int]]:
        """Return the ranks that nobody reports long after they were killed: none were started."""
        if self._killed is None or time.monotonic() - self._killed < KILL_TIMEOUT:
            return []
        ended = [(rank, -signal.SIGKILL) for rank in sorted(self._left)]
        self._left.clear()
        return ended

    @property
    def lost(self) -> str:
        """Which nodes have ended without a report about their ranks, as ``NodeProcesses.lost``."""
        text = NODE_LOST if len(self._lost) == 1 else NODES_LOST
        return text.format(nodes=" and ".join(self._lost)) if self._lost else ""

    def problem(self) -> str:
        """Return what nodes have reported, or why they have not started ranks."""
        if found := self._store.get(PROBLEMS).strip():
            return "\n".join(dict.fromkeys(found.splitlines()))
        if len(self._joined) < self._expected and self._is_incomplete():
            return NOT_JOINED.format(
                joined=len(self._joined),
                nodes=self._expected,
                names=", ".join(self._joined) or "none",
                output=self._nodes.output() or "nothing.",
            )
        return ENDED.format(output=self._nodes.output()) if self._nodes_ended else ""

    def _is_incomplete(self) -> bool:
        """Return whether some nodes will never reach the head."""
        failed = self._nodes.failed or self._nodes.ended
        self._joined = self._store.get(NODES).splitlines()
        if len(self._joined) == self._expected or not (self._joined or failed):
            return False
        now = time.monotonic()
        if failed:
            self._failed = self._failed or now
            return now - self._failed > GRACE  # what it has printed may arrive after its end
        self._first_joined = self._first_joined or now
        return now - self._first_joined > JOIN_TIMEOUT

    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        """Let node launchers signal their ranks."""
        if sig == signal.SIGKILL and not others:
            self._killed = self._killed or time.monotonic()
        key = SIGNAL.format(self._signals)
        self._store.call("set", key, f"{int(sig)} {int(others)}")
        self._signals += 1
