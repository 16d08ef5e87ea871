"""``stream`` and ``runs/<id>/stream``: websockets that send changes while the page is visible."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from nbmgpu.report.snapshot import Snapshot

from .base_handler import AuthenticatedHandler, to_json
from .open_runs import OpenRuns
from .payloads import CloseCode
from .run_folders import NoSuchRunError, run_folder
from .updates import UpdateReader

UPDATE_INTERVAL = 1.0
"""Seconds between two updates of devices and runs."""

RUN_INTERVAL = 0.25
"""Seconds between two messages about one run."""

REASON_BYTES = 120
"""Maximum bytes of a close reason; the protocol allows 123."""


class Stream(WebSocketMixin, WebSocketHandler, AuthenticatedHandler):
    """A websocket that sends data. It only receives whether the page is visible."""

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open the websocket for users who may read."""
        await super().get(*args, **kwargs)

    def get_compression_options(self) -> dict[str, Any]:
        """Enable compression: entries of runs are similar."""
        return {}

    def open(self, *args: str, **kwargs: str) -> None:
        """Start sending."""
        super().open(*args, **kwargs)
        self._visible = asyncio.Event()
        self._visible.set()
        self._sending = asyncio.ensure_future(self._run())

    def on_message(self, message: str | bytes) -> None:
        """Handle ``Visibility`` messages; ignore all others."""
        try:
            visible = json.loads(message)["visible"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        if visible:
            self._visible.set()
        else:
            self._visible.clear()

    def on_close(self) -> None:
        """Stop sending."""
        super().on_close()
        self._sending.cancel()

    async def _run(self) -> None:
        try:
            await self.send_changes()
        except WebSocketClosedError:
            pass
        except NoSuchRunError as error:
            self.close(CloseCode.GONE, _truncate(str(error)))
        except Exception:
            self.log.exception("A stream of nbmgpu failed")
            self.close(1011, "the server extension of nbmgpu failed; the server's log has details")

    @abstractmethod
    async def send_changes(self) -> None:
        """Send messages until the stream ends."""

    async def wait_until_visible(self) -> None:
        """Wait until the page is visible."""
        await self._visible.wait()


class UpdateStream(Stream):
    """Sends devices and runs once a second."""

    async def send_changes(self) -> None:
        """Send ``Update`` messages until the client disconnects."""
        reader = UpdateReader(self.services)

        def read() -> str:
            update = reader.read()
            return to_json(update) if update else ""

        while True:
            await self.wait_until_visible()
            if text := await self.services.run_in_thread(read):
                await self.write_message(text)
            await asyncio.sleep(UPDATE_INTERVAL)


class RunStream(Stream):
    """Sends one run four times a second until it is over."""

    async def send_changes(self) -> None:
        """Send the run's ``Parts`` that changed, at first all of them."""
        reader = await self.services.run_in_thread(RunReader, self.services.opened, *self.path_args)
        while True:
            await self.wait_until_visible()
            text, over = await self.services.run_in_thread(reader.read)
            if text:
                await self.write_message(text)
            if over:
                self.close(CloseCode.OVER, "the run is over")
                return
            await asyncio.sleep(RUN_INTERVAL)


class RunReader:
    """Reads one run for one client."""

    def __init__(self, opened: OpenRuns, name: str) -> None:
        """Open the run ``name``.

        Raises:
            NoSuchRunError: It does not exist.
        """
        self._name = name
        self._open = opened.get(name)
        with self._open.current() as run:
            self._snapshot = Snapshot(run)

    def read(self) -> tuple[str, bool]:
        """Return the parts that changed as JSON, if any, and whether the run is over.

        Raises:
            NoSuchRunError: The run was deleted.
        """
        run_folder(self._name)
        with self._open.current() as run:
            over = run.over  # read first, so that the last parts include all events
            parts = self._snapshot.changed()
        return to_json(parts) if parts else "", over


def _truncate(text: str) -> str:
    return text.encode()[:REASON_BYTES].decode(errors="ignore")
