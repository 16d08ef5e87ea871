"""``stream`` and ``runs/<id>/stream``: what changes, told as long as somebody listens and looks."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from nbmgpu.report.snapshot import Snapshot

from .base_handler import ForUsers, to_json
from .changes import NewsReader
from .payloads import CloseCode
from .run_folders import NoSuchRunError, open_run, run_folder

NEWS_EVERY = 1.0
"""Seconds between two words about machine and runs."""

PARTS_EVERY = 0.25
"""Seconds between two words about one run."""

REASON_BYTES = 120
"""What a close frame has room for, nearly."""


class Stream(WebSocketMixin, WebSocketHandler, ForUsers):
    """A websocket that tells something.  All it hears is whether somebody looks."""

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open the websocket for those who may read."""
        await super().get(*args, **kwargs)

    def get_compression_options(self) -> dict[str, Any]:
        """Compress: lines of runs look alike."""
        return {}

    def open(self, *args: str, **kwargs: str) -> None:
        """Begin to tell."""
        super().open(*args, **kwargs)
        self._looking = asyncio.Event()
        self._looking.set()
        self._telling = asyncio.ensure_future(self._tell())

    def on_message(self, message: str | bytes) -> None:
        """Hear ``Visibility``; whatever else somebody says means nothing."""
        try:
            visible = json.loads(message)["visible"]
        except (ValueError, TypeError, KeyError):
            return
        if visible:
            self._looking.set()
        else:
            self._looking.clear()

    def on_close(self) -> None:
        """Stop to tell."""
        super().on_close()
        self._telling.cancel()

    async def _tell(self) -> None:
        try:
            await self.tell()
        except WebSocketClosedError:
            pass
        except NoSuchRunError as error:
            self.close(CloseCode.GONE, _cut(str(error)))
        except Exception:
            self.log.exception("A stream of nbmgpu failed")
            self.close(1011, "the server extension of nbmgpu failed; the server's log has details")

    @abstractmethod
    async def tell(self) -> None:
        """Tell until there is nothing more to tell."""

    async def looked_at(self) -> None:
        """Wait until somebody looks."""
        await self._looking.wait()


class NewsStream(Stream):
    """Devices and runs, once a second."""

    async def tell(self) -> None:
        """Send ``News``, without end."""
        reader = NewsReader(self.services)

        def look() -> str:
            news = reader.look()
            return to_json(news) if news else ""

        while True:
            await self.looked_at()
            if text := await self.services.work(look):
                await self.write_message(text)
            await asyncio.sleep(NEWS_EVERY)


class RunStream(Stream):
    """One run, four times a second, until it is over."""

    async def tell(self) -> None:
        """Send those of the run's ``Parts`` that have changed: first all, at last the end."""
        watch = await self.services.work(Watch, *self.path_args)
        while True:
            await self.looked_at()
            text, over = await self.services.work(watch.look)
            if text:
                await self.write_message(text)
            if over:
                self.close(CloseCode.OVER, "the run is over")
                return
            await asyncio.sleep(PARTS_EVERY)


class Watch:
    """Reads one run for one listener."""

    def __init__(self, name: str) -> None:
        """Open the run ``name``.

        Raises:
            NoSuchRunError: there is none.
        """
        self._name = name
        self._run = open_run(name)
        self._snapshot = Snapshot(self._run)

    def look(self) -> tuple[str, bool]:
        """Return the parts that have changed as JSON, if any, and whether those were the last.

        Raises:
            NoSuchRunError: the run has been deleted.
        """
        run_folder(self._name)
        over = self._run.over  # asked first: what was said until then is in the parts
        self._run.poll()
        parts = self._snapshot.changed()
        return to_json(parts) if parts else "", over


def _cut(text: str) -> str:
    return text.encode()[:REASON_BYTES].decode(errors="ignore")
