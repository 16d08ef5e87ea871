"""``runs/<id>/tensorboard``: TensorBoard for the folders of a run, behind this server's login."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.httpclient import HTTPRequest
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from nbmgpu.report.tensorboard_folders import shown_folders, tensorboard_command

from .base_handler import Handler
from .http_errors import ApiError
from .tensorboard_processes import is_installed

SENT = ("Accept", "Accept-Encoding", "Content-Type", "If-None-Match", "Range")
"""Headers of a request that TensorBoard receives; cookies and tokens are not among them."""

RETURNED = (
    "Cache-Control", "Content-Encoding", "Content-Security-Policy", "Content-Type", "ETag",
    "Expires", "Location", "Vary", "X-Content-Type-Options",
)  # fmt: skip

LARGEST = 512 * 1024**2
"""The most bytes of an answer: TensorBoard sends each image or table by itself."""

PATIENCE = 300.0
"""Seconds that TensorBoard may take for an answer."""


class UnixResolver(Resolver):
    """Resolves every name to one socket."""

    def initialize(self, path: Path) -> None:
        """Resolve to ``path``."""
        self.path = str(path)

    async def resolve(self, *args: Any, **kwargs: Any) -> list[tuple[int, Any]]:
        """Return the socket."""
        return [(socket.AF_UNIX, self.path)]


class TensorBoardListHandler(Handler):
    """Which folders of a run this server can show."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with the places of the folders that exist on this machine."""
        found = await self.services.run_in_thread(self.services.opened.tensorboard, name)
        shown = shown_folders(found) if is_installed() else {}
        self.answer([place for place, folder in shown.items() if os.path.isdir(folder)])


class TensorBoardHandler(Handler):
    """TensorBoard's pages for one folder of a run; it is started at the first request."""

    def check_xsrf_cookie(self) -> None:
        """Refuse requests from pages of other sites.

        TensorBoard's page does not know the server's XSRF token. A POST request, which only reads,
        may name this server as its origin instead; other methods need the token.

        Raises:
            HTTPError: the request may come from another site.
        """
        headers, method = self.request.headers, self.request.method
        if method in ("GET", "HEAD"):
            if headers.get("Sec-Fetch-Site") == "cross-site" and not self.token_authenticated:
                raise ApiError(403, "This request comes from a page of another site.")
            return
        try:
            super().check_xsrf_cookie()
        except web.HTTPError:
            if method != "POST" or not headers.get("Origin") or not self.check_origin():
                raise

    @web.authenticated
    @authorized
    async def get(self, name: str, place: str) -> None:
        """Answer as TensorBoard does."""
        self.check_xsrf_cookie()  # also here: the first request starts a process
        await self._answer(name, place)

    @web.authenticated
    @authorized("read")  # type: ignore[untyped-decorator]
    async def post(self, name: str, place: str) -> None:
        """Answer as TensorBoard does to a question that is too long for an address."""
        await self._answer(name, place)

    async def _answer(self, name: str, place: str) -> None:
        found = await self.services.run_in_thread(self.services.opened.tensorboard, name)
        folder = shown_folders(found).get(int(place), "")
        if not os.path.isdir(folder):
            what = f"Run {name} has no folder {place} for TensorBoard on this machine."
            raise ApiError(404, what, tensorboard_command(folder) if folder else "")
        if not is_installed():
            what = "TensorBoard is not installed in the environment of the Jupyter server."
            raise ApiError(501, what, f"pip install tensorboard, or {tensorboard_command(folder)}")
        prefix = f"{self.base_url}nbmgpu/api/runs/{name}/tensorboard/{place}"
        path = await asyncio.to_thread(self.services.tensorboards.socket, folder, prefix)
        await self._forward(path)

    async def _forward(self, path: Path) -> None:
        request, method = self.request, self.request.method or "GET"
        resolver = UnixResolver(path=path)
        options = {"resolver": resolver, "max_body_size": LARGEST, "max_buffer_size": LARGEST}
        client = SimpleAsyncHTTPClient(force_instance=True, **options)
        try:
            answer = await client.fetch(
                HTTPRequest(
                    f"http://localhost{request.uri}",
                    method,
                    {name: request.headers[name] for name in SENT if name in request.headers},
                    request.body if method == "POST" else None,
                    follow_redirects=False,
                    decompress_response=False,
                    request_timeout=PATIENCE,
                ),
                raise_error=False,
            )
        except OSError as error:  # it ends just now
            raise ApiError(502, "TensorBoard has ended.", "Load the page again.") from error
        finally:
            client.close()
        if answer.code == 599:
            raise ApiError(502, f"TensorBoard does not answer: {answer.error}")
        self.set_status(answer.code)
        self.clear_header("Content-Security-Policy")
        for header in RETURNED:
            if header in answer.headers:
                self.set_header(header, answer.headers[header])
        if answer.body:
            self.write(answer.body)
        await self.finish(set_content_type=answer.headers.get("Content-Type", "text/plain"))
