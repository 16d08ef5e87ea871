"""Every route and method of the Jupyter server extension, taken from its own table.

``tests/server/test_access.py`` checks that the table has all registered routes.  Here each of them
gets requests without a token, without XSRF, from other origins, and for folders that are no runs.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import websocket
from jupyter_server_process import BASE, Server, serving
from other_user import USER, require_root
from staged import Stage
from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler

from nbmgpu.server.app import ROUTES
from nbmgpu.server.payloads import CloseCode

RUN = "20260101-120000-000aa"
LINK = "20260101-120000-000bb"
FOREIGN = "20260101-120000-000cc"
EMPTY = "20260101-120000-000dd"
FILE = "20260101-120000-000ee"
LINKED_EVENTS = "20260101-120000-000ff"

SECRET = "the-secret-of-a-log"
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
METHODS = ("GET", "HEAD", *CHANGING)
ELSEWHERE = "http://elsewhere.example"


@dataclass(frozen=True)
class Route:
    """A line of the table."""

    pattern: str
    handler: type[RequestHandler]

    @property
    def is_websocket(self) -> bool:
        return issubclass(self.handler, WebSocketHandler)

    @property
    def methods(self) -> list[str]:
        """The methods that the handler has."""
        return [
            method
            for method in METHODS
            if getattr(self.handler, method.lower()) is not getattr(RequestHandler, method.lower())
        ]

    def address(self, run: str = RUN) -> str:
        """An address that the pattern matches."""
        path = self.pattern.replace("([^/]+)", run).replace(r"(\d{1,5})", "0")
        return BASE.rstrip("/") + path.replace(".*", "anything")

    def __str__(self) -> str:
        return self.pattern


ALL = [Route(pattern, handler) for pattern, handler in ROUTES]
HTTP = [route for route in ALL if not route.is_websocket]
WEBSOCKETS = [route for route in ALL if route.is_websocket]
OF_RUNS = [route for route in ALL if "([^/]+)" in route.pattern]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one run, and with folders of which it must not serve anything."""
    require_root()
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch, serving(folder) as server, Stage() as stage:
        patch.setenv("NBMGPU_RUNS", str(server.runs))
        for name in (RUN, FOREIGN, LINKED_EVENTS, LINK):
            staged = stage(1, id=name)
            staged.log(0, f"{SECRET}\n")
            staged.points("loss", [1], [0.5])
            staged.finish()
        (server.runs / LINK).rename(folder / LINK)
        (server.runs / LINK).symlink_to(folder / LINK)
        events = server.runs / LINKED_EVENTS / "events"
        events.rename(folder / "events")
        events.symlink_to(folder / "events")
        os.chown(server.runs / FOREIGN, USER, USER)
        (server.runs / EMPTY).mkdir()
        (server.runs / FILE).write_text(SECRET)
        (server.runs.parent / "secret").write_text(SECRET)
        yield server


@pytest.fixture(scope="module")
def cookie(server: Server) -> str:
    """The cookies of a browser that has opened the server's page."""
    page = server.request(f"{BASE}?token={server.token}", token="")
    return "; ".join(c.partition(";")[0] for c in page.headers.get_all("Set-Cookie"))


@pytest.fixture(autouse=True)
def _nothing_has_changed(server: Server) -> Iterator[None]:
    """No request of these tests deletes or stops anything."""

    def state() -> list[tuple[str, float]]:
        paths = [path for path in sorted(server.runs.rglob("*")) if path.name != RUN]
        return [(str(p), p.lstat().st_mtime) for p in paths if p.name != "line.json"]

    before = state()
    yield
    assert state() == before


def connect(server: Server, route: Route, **options: object) -> websocket.WebSocket:
    address = f"ws://127.0.0.1:{server.port}{route.address()}"
    return websocket.create_connection(address, timeout=20, **options)


def test_the_server_answers_who_may_ask(server, cookie):
    """Otherwise the tests below would prove nothing."""
    assert SECRET in server.request(f"runs/{RUN}/logs").body.decode()
    assert SECRET in server.request(f"runs/{RUN}/logs", token="", Cookie=cookie).body.decode()
    assert len(HTTP) > 9
    assert len(WEBSOCKETS) == 2
    changing = {(str(r), m) for r in HTTP for m in r.methods if m in CHANGING}
    assert len(changing) >= 7


@pytest.mark.parametrize("route", ALL, ids=str)
def test_without_the_token_every_method_is_refused(server, route):
    for token in ("", "wrong"):
        for method in METHODS:
            answer = server.request(route.address(), method, token=token)
            assert answer.status == 403, (method, token)
            assert SECRET.encode() not in answer.body


@pytest.mark.parametrize("route", HTTP, ids=str)
def test_without_xsrf_every_change_is_refused(server, cookie, route):
    """A page of another site can let the browser send its cookies, and cannot read them."""
    xsrf = re.search("_xsrf=([^;]+)", cookie)[1]
    missing = route.address("20200101-000000-000aa")
    for method in CHANGING:
        for body in (None, {}, {"force": True}):
            answer = server.request(route.address(), method, body, token="", Cookie=cookie)
            assert answer.status == 403, method
        wrong = {"Cookie": cookie, "X-XSRFToken": xsrf[:-3] + "abc"}
        assert server.request(route.address(), method, {}, token="", **wrong).status == 403
        known = {"Cookie": cookie, "X-XSRFToken": xsrf}
        allowed = server.request(missing, method, {}, token="", **known)
        assert allowed.status != 403, method


@pytest.mark.parametrize("route", HTTP, ids=str)
def test_pages_of_other_origins_read_nothing(server, cookie, route):
    """Neither with the browser's cookies, nor by an answer that lets scripts read it."""
    for method in METHODS:
        answer = server.request(route.address(), method, token="", Cookie=cookie, Origin=ELSEWHERE)
        assert answer.status in (403, 404), method
        assert SECRET.encode() not in answer.body
        assert answer.headers["Access-Control-Allow-Origin"] is None
    known = server.request(route.address(), "OPTIONS", token="", Origin=ELSEWHERE)
    assert known.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("route", WEBSOCKETS, ids=str)
def test_websockets_are_refused_to_others(server, cookie, route):
    refused = [
        {"cookie": cookie, "origin": ELSEWHERE},
        {"cookie": cookie, "origin": f"http://127.0.0.1:{server.port}.elsewhere.example"},
        {"cookie": cookie, "origin": "null"},
        {},
        {"header": ["Authorization: token wrong"]},
    ]
    for options in refused:
        with pytest.raises(websocket.WebSocketBadStatusException) as error:
            connect(server, route, **options)
        assert error.value.status_code == 403, options
    opened = connect(server, route, cookie=cookie)
    assert json.loads(opened.recv())
    opened.close()
    opened.shutdown()


NOT_RUNS = [
    "..", ".", "%2e%2e", "%2E%2E", "..%2f..%2fetc", "..%2fsecret", "%2e%2e%2fsecret", "..%5csecret",
    "%252e%252e%252fsecret", "%2fetc%2fpasswd", "x", "%00", f"{RUN}%00",
    "~", "*", f"{RUN}%2f..%2f{FOREIGN}", f"{RUN}%0a", f"%20{RUN}", "20260101-120000-",
    "20260101-120000-000AA", "%F0%9D%9F%90" + RUN[1:], "a" * 3000,
    LINK, FOREIGN, EMPTY, FILE, LINKED_EVENTS, "20200101-000000-000aa",
]  # fmt: skip
"""Names in place of a run's id: no ids, or ids of what is no run of this user."""


@pytest.mark.parametrize("route", OF_RUNS, ids=str)
def test_what_is_no_run_of_this_user_is_not_found(server, route):
    for name in NOT_RUNS:
        if route.is_websocket:
            opened = websocket.create_connection(
                f"ws://127.0.0.1:{server.port}{route.address(name)}",
                timeout=20,
                header=[f"Authorization: token {server.token}"],
            )
            code, data = opened.recv_data()
            assert code == websocket.ABNF.OPCODE_CLOSE, (name, data)
            assert int.from_bytes(data[:2], "big") == CloseCode.GONE, name
            opened.shutdown()
            continue
        for method in route.methods:
            answer = server.request(route.address(name), method, {} if method == "POST" else None)
            assert answer.status in (403, 404), (name, method, answer)
            assert SECRET.encode() not in answer.body
            assert b"Traceback" not in answer.body


def test_the_list_has_runs_of_this_user_alone(server):
    assert [line["id"] for line in server.request("runs").json["runs"]] == [RUN]


@pytest.mark.parametrize("route", ALL, ids=str)
def test_addresses_as_no_client_sends_them(server, route):
    """Clients normalize paths; attackers do not."""
    base = route.address()
    for address in (
        f"{base}/../../secret", f"{base}/..%2f..%2fsecret", f"{BASE}nbmgpu/api/../../../secret",
        f"{BASE}nbmgpu/api/runs/../secret", f"{BASE}nbmgpu/api//runs/..//..//secret", f"{base}%00",
        f"{base};/../secret", f"{base}\\..\\secret", f"{BASE}nbmgpu/api/runs/%c0%ae%c0%ae%2fsecret",
        f"{BASE}nbmgpu/api/runs/{RUN}/logs/0/../../run.json",
    ):  # fmt: skip
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            request = f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            request += f"Authorization: token {server.token}\r\nConnection: close\r\n\r\n"
            raw.sendall(request.encode())
            answer = b"".join(iter(lambda raw=raw: raw.recv(65536), b""))
        status = int(answer.split()[1])
        assert status in (400, 403, 404), (address, answer[:300])
        assert SECRET.encode() not in answer
