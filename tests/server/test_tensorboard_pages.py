"""TensorBoard behind the server's login: real processes, which only the server reaches."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
from jupyter_server_process import BASE, Server, serving, until
from staged import Stage

from nbmgpu.runs.events import TensorBoardFolder

pytest.importorskip("tensorboard")

NAME = "20260101-120000-000aa"
ROUTE = f"runs/{NAME}/tensorboard"
SCALARS = f"{ROUTE}/0/data/plugin/scalars/tags"


@pytest.fixture
def logged(stage: Stage, tmp_path: Path) -> Path:
    """A folder into which a run has logged for TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "logs of a run"
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("loss", 0.5, 1)
    staged = stage(2, id=NAME)
    staged.write(0, TensorBoardFolder(time=1.0, rank=0, folder=str(folder)))
    return folder


def boards(server: Server, folder: Path) -> list[psutil.Process]:
    """Return the processes of TensorBoard that the server has started for a folder."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [p for p in children if {"nbmgpu.server.tensorboard_app", str(folder)} < {*p.cmdline()}]


def connections(process: psutil.Process) -> list[object]:
    """Return the sockets of the internet's protocols that a process and its children have."""
    return [c for p in [process, *process.children(True)] for c in p.net_connections("inet")]


def test_tensorboard_shows_the_folder_of_a_run(runs: Server, logged: Path) -> None:
    assert runs.request(ROUTE).json == [0]
    assert not boards(runs, logged), "it starts when somebody looks"
    page = runs.request(f"{ROUTE}/0/")
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"<title>TensorBoard" in page.body
    assert "script-src" in page.headers["Content-Security-Policy"]
    # The series that the page draws; TensorBoard reads the folder in the background.
    tags = until(lambda: runs.request(SCALARS).json)
    assert tags == {".": {"loss": {"displayName": "loss", "description": ""}}}
    drawn = runs.request(f"{ROUTE}/0/data/plugin/scalars/scalars?tag=loss&run=.")
    assert [point[1:] for point in drawn.json] == [[1, 0.5]]
    assert len(boards(runs, logged)) == 1


def test_only_the_server_reaches_tensorboard(runs: Server, logged: Path) -> None:
    assert runs.request(f"{ROUTE}/0/", token="").status == 403
    assert runs.request(f"{ROUTE}/0/").status == 200
    (board,) = boards(runs, logged)
    assert connections(board) == []
    socket = Path(board.cmdline()[-1])
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


def test_pages_of_other_sites_are_refused(runs: Server, logged: Path) -> None:
    """With the cookie of a login, as browsers send it."""
    login = runs.request(f"{BASE}?token={runs.token}", token="")
    cookies = "; ".join(c.partition(";")[0] for c in login.headers.get_all("Set-Cookie"))
    own = f"http://127.0.0.1:{runs.port}"

    def status(method: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {} if method == "POST" else None
        return runs.request(f"{ROUTE}/0/", method, body, token="", Cookie=cookies, **named).status

    assert status("GET", Sec_Fetch_Site="same-origin") == 200
    assert status("GET", Sec_Fetch_Site="cross-site") == 403
    assert status("POST", Origin=own) not in (403, 404)
    assert status("POST", Origin="http://127.0.0.1.example.com") in (403, 404)
    assert status("POST") == 403


def test_what_cannot_be_shown_is_refused(runs: Server, stage: Stage, tmp_path: Path) -> None:
    staged = stage(1, id=NAME)
    assert runs.request(ROUTE).json == []
    assert runs.request(f"{ROUTE}/0/").status == 404
    for folder in (str(tmp_path / "gone"), "gs://bucket/logs"):
        staged.write(0, TensorBoardFolder(time=1.0, rank=0, folder=folder))
    until(lambda: len(runs.request(f"runs/{NAME}").json["tensorboard"]) == 2)
    assert runs.request(ROUTE).json == []
    refused = runs.request(f"{ROUTE}/1/")
    assert (refused.status, refused.json["hint"]) == (404, "tensorboard --logdir gs://bucket/logs")
    assert runs.request("runs/20260101-120000-000bb/tensorboard").status == 404


def test_a_process_that_has_ended_is_started_again(runs: Server, logged: Path) -> None:
    assert runs.request(f"{ROUTE}/0/").status == 200
    (first,) = boards(runs, logged)
    socket = Path(first.cmdline()[-1])
    first.send_signal(signal.SIGKILL)
    # A request in the moment of the end is answered by 502: load the page again.
    answer = until(lambda: (found := runs.request(f"{ROUTE}/0/")).status != 502 and found)
    assert answer.status == 200
    (second,) = boards(runs, logged)
    assert second.pid != first.pid
    assert not socket.parent.exists()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_tensorboard_ends_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    with serving(tmp_path / "server") as server, Stage() as stage:
        monkeypatch.setenv("NBMGPU_RUNS", str(server.runs))
        staged = stage(1, id=NAME)
        staged.write(0, TensorBoardFolder(time=1.0, rank=0, folder=str(tmp_path)))
        assert server.request(f"{ROUTE}/0/").status == 200
        (board,) = boards(server, tmp_path)
        place = Path(board.cmdline()[-1]).parent
        assert place.exists()
        os.kill(server.process.pid, ending)
        server.process.wait(20)
        until(lambda: not board.is_running())
        until(lambda: not place.exists())


def test_a_server_without_tensorboard_offers_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden" / "sitecustomize.py"
    hidden.parent.mkdir()
    hidden.write_text("import sys; sys.modules['tensorboard'] = None\n")
    path = os.pathsep.join([str(hidden.parent), *sys.path])
    with serving(tmp_path / "server", PYTHONPATH=path) as server, Stage() as stage:
        monkeypatch.setenv("NBMGPU_RUNS", str(server.runs))
        staged = stage(1, id=NAME)
        staged.write(0, TensorBoardFolder(time=1.0, rank=0, folder=str(tmp_path)))
        assert server.request(ROUTE).json == []
        refused = server.request(f"{ROUTE}/0/")
        assert refused.status == 501
        assert f"tensorboard --logdir {tmp_path}" in refused.json["hint"]
