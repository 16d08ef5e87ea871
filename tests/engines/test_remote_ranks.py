"""How the head tells ranks that have ended from those of lost nodes, with nodes that are played."""

from __future__ import annotations

import secrets
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from nbmgpu.engines.multi_node.remote_ranks import RemoteRanks
from nbmgpu.engines.store_server import StoreServer
from nbmgpu.rank.store.exit_reports import EXITS, announce_loss
from nbmgpu.rank.store.store_address import KEY_VARIABLE
from nbmgpu.rank.store.store_client import StoreClient


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StoreClient:
    """Serve a store."""
    monkeypatch.setenv(KEY_VARIABLE, key := secrets.token_hex(8))
    server = StoreServer.on_port("127.0.0.1", bytes.fromhex(key))
    server.start()
    return StoreClient(server.address)


def ranks_of_three_nodes(store: StoreClient, has_copied: list[bool]) -> RemoteRanks:
    run: Any = SimpleNamespace(record=SimpleNamespace(world_size=6, nodes=3))
    nodes: Any = SimpleNamespace(ended=False, have_copied=lambda since: has_copied[0])
    return RemoteRanks(run, nodes, store)


def launch(store: StoreClient, node: str, numbers: tuple[int, ...], exits: str) -> None:
    """Be a node launcher that reports ``exits``, and ends."""

    def launcher() -> None:  # its connection ends with its thread
        announce_loss(store, node, numbers)
        store.append(EXITS, exits)

    thread = threading.Thread(target=launcher)
    thread.start()
    thread.join()


def test_lost_nodes_are_those_without_reports(store: StoreClient) -> None:
    ranks = ranks_of_three_nodes(store, [True])
    assert (ranks.poll(), ranks.lost) == ([], "")
    launch(store, "node1", (0, 1), "0 0\n1 7\n")
    ended: list[tuple[int, int]] = []
    while len(ended) < 2:
        ended += ranks.poll()
    assert (ended, ranks.lost) == ([(0, 0), (1, 7)], "")
    launch(store, "node2", (2, 3), "2 0\n")
    while len(ended) < 4:
        ended += ranks.poll()
    assert ended[2:] == [(2, 0), (3, -9)]
    assert ranks.lost.startswith("The node node2 is lost with its ranks: it is down")
    launch(store, "node3", (4, 5), "")
    while ranks.alive():
        ended += ranks.poll()
    assert ended[4:] == [(4, -9), (5, -9)]
    assert ranks.lost.startswith("The nodes node2 and node3 are lost with their ranks: they are")


def test_ends_are_told_when_the_last_events_are_there(store: StoreClient) -> None:
    has_copied = [False]
    ranks = ranks_of_three_nodes(store, has_copied)
    launch(store, "node1", (0, 1), "0 0\n1 0\n")
    assert ranks.poll() == []
    has_copied[0] = True
    assert ranks.poll() == [(0, 0), (1, 0)]
    assert ranks.poll() == []
