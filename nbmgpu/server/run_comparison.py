"""``compare``: several runs side by side."""

from __future__ import annotations

import contextlib

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.run_comparison import MAX_RUNS, RunComparison, comparison_of

from .base_handler import Handler
from .http_errors import ApiError
from .open_runs import OpenRuns
from .run_folders import own_file


class CompareHandler(Handler):
    """Several runs side by side."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``RunComparison`` of the runs in the query ``runs``, by commas."""
        names = list(dict.fromkeys(filter(None, self.get_query_argument("runs", "").split(","))))
        if not 1 <= len(names) <= MAX_RUNS:
            what = f"{len(names)} runs cannot be compared."
            raise ApiError(400, what, f"compare?runs=ID,ID with at most {MAX_RUNS} runs.")
        self.answer(await self.services.run_in_thread(comparison, self.services.opened, names))


def comparison(opened: OpenRuns, names: list[str]) -> RunComparison:
    """Return the comparison of the runs ``names``, in this order.

    Raises:
        NoSuchRunError: One does not exist, or its cell is a symbolic link.
    """
    with contextlib.ExitStack() as stack:
        # Runs are locked in the same order by all requests, so that none waits for another.
        runs = {name: stack.enter_context(opened.get(name).current()) for name in sorted(names)}
        for run in runs.values():
            with contextlib.suppress(FileNotFoundError):
                own_file(run.folder, run.folder / "cell.py")
        return comparison_of([runs[name] for name in names])
