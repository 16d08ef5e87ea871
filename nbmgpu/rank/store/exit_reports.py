"""How ranks on several nodes have ended, as node launchers report it in the store of the run."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from .store_client import StoreClient

EXITS, LOST = "exits", "lost"
"""Keys: a line per rank that has ended, and a line per node launcher that has."""


@dataclass(frozen=True)
class ExitReports:
    """All reports so far.

    Attributes:
        codes: exit code of each rank that has ended, negative for a signal, in order.
        nodes: name of its node, for each rank whose end its launcher has not reported: it is lost.
    """

    codes: dict[int, int]
    nodes: dict[int, str]

    @classmethod
    def read(cls, store: StoreClient) -> ExitReports:
        """Return what the store has; the keys must have been set."""
        lost = store.get(LOST).splitlines()  # before the exits, which a launcher reports first
        codes: dict[int, int] = {}
        for line in store.get(EXITS).splitlines():
            rank, code = map(int, line.split())
            codes.setdefault(rank, code)
        nodes: dict[int, str] = {}
        for line in lost:
            node, *ranks = line.split()
            nodes |= {rank: node for rank in map(int, ranks) if rank not in codes}
        return cls(codes | dict.fromkeys(nodes, -signal.SIGKILL), nodes)


def announce_loss(store: StoreClient, node: str, ranks: Iterable[int]) -> None:
    """Let the store report ``node`` when the connection of this thread ends, for any reason.

    Args:
        store: a client that this thread goes on to use.
        node: name of this node.
        ranks: those on it.
    """
    store.call("at_close", LOST, f"{node} {' '.join(map(str, ranks))}\n")
