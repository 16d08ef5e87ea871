"""``runs``: list and measure them, show, stop and delete one."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.kept_summary import summary_of
from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.text_format import ending_sentence

from .base_handler import Handler
from .http_errors import ApiError
from .open_runs import OpenRuns
from .payloads import RunSummary, StopRequest
from .run_folders import open_run
from .run_list import DEFAULT_LIMIT


class RunsHandler(Handler):
    """The list of runs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``RunList`` of ``limit`` runs, older than the run ``before`` if given."""
        limit, before = self.number("limit", DEFAULT_LIMIT), self.get_query_argument("before", "")
        self.answer(await self.services.run_in_thread(self.services.lines.newest, limit, before))


class DiskUsageHandler(Handler):
    """The size of all runs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``DiskUsage``."""
        self.answer(await self.services.disk_usage())


class RunHandler(Handler):
    """One run."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with all ``Parts`` of the run."""
        self.answer(await self.services.run_in_thread(all_parts, self.services.opened, name))

    @web.authenticated
    @authorized
    async def delete(self, name: str) -> None:
        """Delete the run's folder, if it is over."""
        await self.services.run_action(delete, name)
        self.set_status(204)
        self.finish()


class SummaryHandler(Handler):
    """The summary of a run."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with a ``RunSummary``, if the run is over."""
        self.answer(await self.services.run_in_thread(summary, name))


class StopHandler(Handler):
    """Stops a run."""

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Request a stop; the body may be a ``StopRequest``."""
        await self.services.run_action(stop, name, self._request())
        self.answer({}, 202)

    def _request(self) -> StopRequest:
        request = self.body(StopRequest)
        if request is None or not isinstance(request.force, bool):
            what = "The body is neither empty nor a StopRequest."
            raise ApiError(400, what, '{"force": false}')
        return request


def all_parts(opened: OpenRuns, name: str) -> dict[str, Any]:
    """Return all parts of a run."""
    with opened.get(name).current() as run:
        return Snapshot(run).whole()


def summary(name: str) -> RunSummary:
    """Return the summary of a finished run."""
    run = open_run(name)
    run.refresh()
    if not run.over:
        raise ApiError(409, f"Run {name} is still running.", "The summary follows at its end.")
    kept = summary_of(run)
    return RunSummary(kept.html, kept.text)


def stop(name: str, request: StopRequest) -> None:
    """Ask the launcher of a run to stop it, through a file; the kernel need not respond."""
    run = open_run(name, ranks=0)
    if run.over:
        raise ApiError(409, f"Run {name} is already over: {ending_sentence(run.state)}.")
    run.stop(request.force)


def delete(name: str) -> None:
    """Delete the folder of a run that is over and whose results the kernel has read."""
    run = open_run(name, ranks=0)
    if not run.over:
        raise ApiError(409, f"Run {name} is still running.", "Stop it first.")
    run.delete()
