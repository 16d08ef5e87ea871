"""Whether another rank has failed, as nodes report it in the store of the run."""

from __future__ import annotations

import secrets
import threading

import pytest

from nbmgpu.engines.store_server import StoreServer
from nbmgpu.rank import peers
from nbmgpu.rank.peers import EXIT_CODE, RemotePeers
from nbmgpu.rank.store.exit_reports import EXITS, LOST, ExitReports, announce_loss
from nbmgpu.rank.store.store_address import KEY_VARIABLE, StoreAddress
from nbmgpu.rank.store.store_client import StoreClient


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> StoreAddress:
    """Serve the store of a run of two nodes with two ranks each, of which none has ended."""
    key = secrets.token_hex(8)
    monkeypatch.setenv(KEY_VARIABLE, key)
    server = StoreServer.on_port("127.0.0.1", bytes.fromhex(key))
    server.start()
    store = StoreClient(server.address)
    for name in (EXITS, LOST):
        store.append(name, "")
    return server.address


@pytest.mark.parametrize(
    ("reported", "failed"),
    [("0 0\n", False), (f"0 {EXIT_CODE}\n", False), ("0 1\n", True), ("0 0\n1 -9\n", True)],
)
def test_reported_codes_tell_whether_a_rank_has_failed(
    address: StoreAddress, reported: str, failed: bool
) -> None:
    StoreClient(address).append(EXITS, reported)
    assert RemotePeers(address).have_failed() is failed


def test_a_launcher_that_ends_without_a_report_has_lost_its_ranks(address: StoreAddress) -> None:
    store = StoreClient(address)

    def launch() -> None:  # its connection ends with its thread
        announce_loss(store, "node2", (2, 3))
        store.append(EXITS, "2 0\n")

    launcher = threading.Thread(target=launch)
    launcher.start()
    launcher.join()
    assert RemotePeers(address).have_failed()
    reports = ExitReports.read(store)
    assert reports.codes == {2: 0, 3: -9}
    assert reports.nodes == {3: "node2"}


def test_a_cut_network_is_a_failure(address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "REPORTED_BY_NODES", 0.2)
    assert RemotePeers(address).have_failed(), "nobody reports anything"
    assert RemotePeers(StoreAddress(host="127.0.0.1", port=1)).have_failed(), "the store is lost"
