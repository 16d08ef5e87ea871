"""Fixtures: one real server for each test module, and staged runs in its folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from jupyter_server_process import Server, serving
from staged import Stage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def runs(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, without runs."""
    remove_runs(server)
    monkeypatch.setenv("NBMGPU_RUNS", str(server.runs))
    yield server
    remove_runs(server)


def remove_runs(server: Server) -> None:
    """Remove all runs, or a file in their place, and wait until the server has noticed."""
    if server.runs.is_file():
        server.runs.unlink()
    shutil.rmtree(server.runs, ignore_errors=True)
    assert server.request("runs").json["runs"] == []


@pytest.fixture
def stage(runs: Server) -> Iterator[Stage]:
    with Stage() as stage:
        yield stage
