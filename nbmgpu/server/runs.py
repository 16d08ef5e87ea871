"""``runs``: list them, show, stop and delete one."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.report.text_format import ending_sentence

from .base_handler import Handler
from .http_errors import Refusal
from .payloads import RunSummary, StopRequest
from .run_folders import open_run
from .run_list import NEWEST


class RunsHandler(Handler):
    """All runs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``RunList``: ``limit`` runs, those before the run ``before`` if given."""
        limit, before = self.number("limit", NEWEST), self.get_query_argument("before", "")
        self.answer(await self.services.work(self.services.lines.newest, limit, before))


class RunHandler(Handler):
    """One run."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with all ``Parts`` of it."""
        self.answer(await self.services.work(whole, name))

    @web.authenticated
    @authorized
    async def delete(self, name: str) -> None:
        """Remove its folder, if it is over."""
        await self.services.fulfil(delete, name)
        self.set_status(204)
        self.finish()


class SummaryHandler(Handler):
    """What stays of a run in its notebook."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with a ``RunSummary``, if it is over."""
        self.answer(await self.services.work(summary, name))


class StopHandler(Handler):
    """The end of a run that goes on."""

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Ask the run to end; the body may be a ``StopRequest``."""
        await self.services.fulfil(stop, name, self._wish())
        self.answer({}, 202)

    def _wish(self) -> StopRequest:
        wish = self.body(StopRequest)
        if wish is None or not isinstance(wish.force, bool):
            what = "The body says neither how to stop nor nothing."
            raise Refusal(400, what, '{"force": false}')
        return wish


def whole(name: str) -> dict[str, Any]:
    """Return all there is to show of a run."""
    run = open_run(name)
    run.refresh()
    return Snapshot(run).whole()


def summary(name: str) -> RunSummary:
    """Return the summary of a run that is over."""
    run = open_run(name)
    run.refresh()
    if not run.over:
        raise Refusal(409, f"Run {name} still goes on.", "Its summary comes when it is over.")
    return RunSummary(summary_html(run), summary_text(run))


def stop(name: str, wish: StopRequest) -> None:
    """Ask the launcher of a run to end it.  It watches the folder, whatever the kernel does."""
    run = open_run(name, ranks=False)
    if run.over:
        raise Refusal(409, f"Run {name} is over already: {ending_sentence(run.state)}.")
    run.stop(wish.force)


def delete(name: str) -> None:
    """Remove the folder of a run that is over and whose results have come home."""
    run = open_run(name, ranks=False)
    if not run.over:
        raise Refusal(409, f"Run {name} still goes on.", "Stop it first.")
    run.delete()
