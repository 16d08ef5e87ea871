"""``runs/<id>/traces/<rank>``: downloads of what ``--profile`` writes."""

from __future__ import annotations

from pathlib import Path

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.runs.folder import trace_path

from .base_handler import Handler
from .logs import send_file
from .run_folders import NoSuchRunError, open_run, own_file


class TraceHandler(Handler):
    """The trace of one rank."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        """Send the file, which Perfetto opens as it is."""
        path = await self.services.run_in_thread(trace_file, name, int(rank))
        await send_file(self, path, f"{name}-{path.name}", "application/gzip")


def trace_file(name: str, rank: int) -> Path:
    """Return the path of a rank's trace.

    Raises:
        NoSuchRunError: There is no such run or trace, or the trace is a symbolic link.
    """
    run = open_run(name, ranks=0)
    try:
        return own_file(run.folder, trace_path(run.folder, rank))
    except FileNotFoundError:
        raise NoSuchRunError(f"Run {name} has no trace of rank {rank}") from None
