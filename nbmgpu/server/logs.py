"""``runs/<id>/logs``: pages of log lines, and downloads of log files."""

from __future__ import annotations

from pathlib import Path

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from nbmgpu.report.log_pages import ALL, LogRequest

from .base_handler import Handler
from .run_folders import NoSuchRunError, open_run, own_file

PAGE_LINES = 200
"""Default number of lines of a page."""

CHUNK_BYTES = 1 << 18
"""Bytes of a download that are held in memory at a time."""


class LogsHandler(Handler):
    """Log lines of one rank or of all ranks."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with a ``LogPage``; the query has the fields of ``LogRequest``."""
        request = LogRequest(
            rank=self.number("rank", ALL),
            first=self.number("first", -1),
            count=self.number("count", PAGE_LINES),
            search=self.get_query_argument("search", "", strip=False),
        )
        self.answer(await self.services.run_in_thread(self.services.opened.page, name, request))


class LogFileHandler(Handler):
    """The log file of one rank."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        """Send the file as a plain text attachment."""
        path = await self.services.run_in_thread(log_file, name, int(rank))
        file_name = f"{name}-rank-{rank}.log"
        await send_file(self, path, file_name, "text/plain; charset=utf-8")


async def send_file(handler: Handler, path: Path, name: str, kind: str) -> None:
    """Answer with the file at ``path`` as an attachment called ``name``, of media type ``kind``."""
    handler.set_header("Content-Type", kind)
    handler.set_header("Content-Disposition", f'attachment; filename="{name}"')
    run_in_thread = handler.services.run_in_thread
    with await run_in_thread(path.open, "rb") as file:
        while chunk := await run_in_thread(file.read, CHUNK_BYTES):
            handler.write(chunk)
            try:
                await handler.flush()
            except StreamClosedError:
                return
    await handler.finish(set_content_type=kind)


def log_file(name: str, rank: int) -> Path:
    """Return the path of a rank's log.

    Raises:
        NoSuchRunError: There is no such run or rank, or the log is a symbolic link.
    """
    run = open_run(name)
    if rank >= run.record.world_size:
        last = run.record.world_size - 1
        raise NoSuchRunError(f"Run {name} has no rank {rank}; its last is {last}")
    try:
        return own_file(run.folder, run.log_path(rank))
    except FileNotFoundError:
        raise NoSuchRunError(f"Rank {rank} of run {name} has written nothing yet") from None
