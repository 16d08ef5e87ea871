"""Access control, and requests that are rejected for all users."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
import websocket
from jupyter_server_process import BASE, serving
from staged import Stage

from nbmgpu.server.app import ROUTES
from nbmgpu.server.run_folders import RUN_ID

NAME = "20260101-120000-000aa"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def address(pattern):
    """A path that a route's pattern matches."""
    path = pattern.replace("([^/]+)", NAME).replace(r"(\d{1,5})", "0").replace(".*", "anything")
    assert re.fullmatch(pattern, path)
    return BASE.rstrip("/") + path


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in ROUTES])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_every_route_requires_the_token(runs, stage, pattern, token):
    staged = stage(1, id=NAME)
    staged.log(0, "secret")
    for method in METHODS:
        answer = runs.request(address(pattern), method, token=token)
        assert answer.status == 403, (method, pattern, answer)
        assert b"secret" not in answer.body
    assert staged.run.folder.exists()
    assert not (staged.run.folder / "stop").exists()


@pytest.mark.parametrize("route", ["stream", f"runs/{NAME}/stream"])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_websockets_require_the_token(runs, stage, route, token):
    stage(1, id=NAME)
    with (
        pytest.raises(websocket.WebSocketBadStatusException) as refused,
        runs.listen(route, token=token),
    ):
        pass
    assert refused.value.status_code == 403
    with runs.listen(route) as stream:  # the same, with the token
        assert json.loads(stream.recv())


REGISTERED = """
from jupyter_server.serverapp import ServerApp
app = ServerApp()
app.initialize(["--ServerApp.jpserver_extensions={'nbmgpu': True}", "--ServerApp.base_url=/b/"],
               find_extensions=False)
groups = [app.web_app.wildcard_router, *(r.target for r in app.web_app.default_router.rules)]
for rule in [rule for group in groups for rule in getattr(group, "rules", [])]:
    if rule.target.__module__.startswith("nbmgpu"):
        print(rule.matcher.regex.pattern)
"""


def test_the_tested_routes_are_all_registered_routes(tmp_path):
    environment = os.environ | {"JUPYTER_NO_CONFIG": "1", "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", REGISTERED]
    done = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    registered = set(done.stdout.split())
    assert registered == {f"/b{pattern}$" for pattern, _ in ROUTES}, done.stderr


def test_the_servers_authorizer_is_called(tmp_path, monkeypatch):
    """An authorizer may allow users to read but not to stop."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "server" / "runs"))
    reading = "--ServerApp.authorizer_class=server.authorizers.ReadOnlyAuthorizer"
    with Stage() as stage, serving(tmp_path / "server", reading) as server:
        staged = stage(1, id=NAME)
        staged.start()
        assert server.request(f"runs/{NAME}").status == 200
        assert server.request(f"runs/{NAME}/stop", "POST", {}).status == 403
        assert not (staged.run.folder / "stop").exists()
        staged.finish()
        assert server.request(f"runs/{NAME}", "DELETE").status == 403
        assert staged.run.folder.exists()
        with server.listen("stream") as stream:
            assert json.loads(stream.recv())["runs"][0]["id"] == NAME
    deny_all = "--ServerApp.authorizer_class=server.authorizers.DenyAllAuthorizer"
    with serving(tmp_path / "closed", deny_all) as server:
        for pattern, _ in ROUTES:
            statuses = {server.request(address(pattern), method).status for method in METHODS}
            assert statuses - {405} == {403}, pattern


def cookies_of(server):
    """Return the cookies of a browser that has opened the server's page."""
    page = server.request(f"{BASE}?token={server.token}", token="")
    return "; ".join(c.partition(";")[0] for c in page.headers.get_all("Set-Cookie"))


def test_websockets_are_refused_for_other_origins(runs):
    cookie = cookies_of(runs)
    with (
        pytest.raises(websocket.WebSocketBadStatusException) as refused,
        runs.listen("stream", token="", cookie=cookie, origin="http://elsewhere.example"),
    ):
        pass
    assert refused.value.status_code == 403
    with runs.listen("stream", token="", cookie=cookie) as stream:  # from the server's own page
        assert json.loads(stream.recv())["devices"]


def test_a_cookie_without_the_xsrf_token_cannot_stop_runs(runs, stage):
    staged = stage(1, id=NAME)
    staged.start()
    cookie = cookies_of(runs)
    assert runs.request("status", token="", Cookie=cookie).status == 200
    assert runs.request(f"runs/{NAME}/stop", "POST", {}, token="", Cookie=cookie).status == 403
    assert not (staged.run.folder / "stop").exists()
    xsrf = re.search("_xsrf=([^;]+)", cookie)[1]
    known = {"Cookie": cookie, "X-XSRFToken": xsrf}
    assert runs.request(f"runs/{NAME}/stop", "POST", {}, token="", **known).status == 202


INVALID_IDS = [
    "..", ".", "%2e%2e", "..%2f..%2fetc", "%2fetc%2fpasswd", "x", "%00", "~", "*",
    "20260101-120000-000aa%2f..%2f20260101-120000-000aa", "20260101-120000-000aa%0a",
    "20260101-120000-", "20260101-120000-000AA", "a" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("name", INVALID_IDS)
@pytest.mark.parametrize("tail", ["", "/logs", "/logs/0/download", "/stop"])
def test_invalid_ids_are_rejected(runs, stage, name, tail):
    stage(1, id=NAME).log(0, "secret")
    answer = runs.request(f"runs/{name}{tail}", "POST" if tail == "/stop" else "GET")
    assert answer.status == 404, answer
    assert answer.json["message"]
    assert b"secret" not in answer.body


def test_unencoded_paths_do_not_leave_the_folder(runs, stage):
    """Clients normalize paths; attackers do not."""
    stage(1, id=NAME)
    for path in (f"runs/{NAME}/../../../../api/contents", "runs/../../../../../etc/passwd"):
        with socket.create_connection(("127.0.0.1", runs.port), timeout=20) as raw:
            request = f"GET {BASE}nbmgpu/api/{path} HTTP/1.1\r\nHost: 127.0.0.1:{runs.port}\r\n"
            request += f"Authorization: token {runs.token}\r\nConnection: close\r\n\r\n"
            raw.sendall(request.encode())
            answer = b"".join(iter(lambda: raw.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 404"), answer[:200]


def test_generated_ids_are_valid(stage):
    assert RUN_ID.fullmatch(stage(1).run.id)


def test_a_symbolic_link_is_not_a_run(runs, stage, tmp_path):
    staged = stage(1, id=NAME)
    other = "20260101-120000-000bb"
    elsewhere = tmp_path / other
    staged.run.folder.rename(elsewhere)
    (runs.runs / other).symlink_to(elsewhere)
    answer = runs.request(f"runs/{other}")
    assert answer.status == 404
    assert "is a link" in answer.json["message"]
    assert runs.request("runs").json["runs"] == []
    assert runs.request(f"runs/{other}", "DELETE").status == 404
    assert elsewhere.exists()


def test_a_log_that_is_a_link_is_not_read(runs, stage, tmp_path):
    (tmp_path / "secret").write_text("secret")
    staged = stage(1, id=NAME)
    staged.run.log_path(0).symlink_to(tmp_path / "secret")
    for route in (f"runs/{NAME}/logs", f"runs/{NAME}/logs/0/download"):
        answer = runs.request(route)
        assert answer.status == 404, answer
        assert "is a link" in answer.json["message"]


@pytest.mark.parametrize("part", ["events", "logs"])
def test_a_folder_with_a_linked_part_is_not_a_run(runs, stage, tmp_path, part):
    staged = stage(1, id=NAME)
    (staged.run.folder / part).rename(tmp_path / part)
    (staged.run.folder / part).symlink_to(tmp_path / part)
    assert runs.request(f"runs/{NAME}").status == 404


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_a_run(runs, stage):
    staged = stage(1, id=NAME)
    staged.finish()
    os.chown(staged.run.folder, 12345, 12345)
    answer = runs.request(f"runs/{NAME}")
    assert answer.status == 404
    assert "another user" in answer.json["message"]
    assert runs.request("runs").json["runs"] == []
    assert runs.request(f"runs/{NAME}", "DELETE").status == 404
    assert staged.run.folder.exists()


def test_a_folder_that_is_not_a_run_gets_404(runs, stage):
    staged = stage(1, id=NAME)
    (staged.run.folder / "run.json").write_text("{")
    answer = runs.request(f"runs/{NAME}")
    assert answer.status == 404
    assert "cannot be read" in answer.json["message"]
    (staged.run.folder / "run.json").write_text('{"id": "x", "strategy": "ddp"}')
    assert "another version of nbmgpu" in runs.request(f"runs/{NAME}").json["message"]
    (staged.run.folder / "run.json").unlink()
    assert "being created or deleted" in runs.request(f"runs/{NAME}").json["message"]
