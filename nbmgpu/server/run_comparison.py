"""``compare``: several runs side by side."""

from __future__ import annotations

import contextlib
import dataclasses

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.run_comparison import MAX_RUNS, RunComparison, comparison_of
from nbmgpu.runs.run import Run

from .base_handler import Handler
from .http_errors import ApiError
from .open_runs import OpenRun, OpenRuns
from .run_folders import NoSuchRunError, own_file


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
    """Return the comparison of those of the runs ``names`` that exist, in this order.

    Raises:
        NoSuchRunError: None of them does, or the cell of one is a symbolic link.
    """
    found: dict[str, OpenRun] = {}
    error: NoSuchRunError | None = None
    for name in names:
        try:
            found[name] = opened.kept(name)
        except NoSuchRunError as missing:
            error = missing
            continue
        with found[name].current() as run:  # reads its events while no other run is locked
            refuse_linked_cell(run)
    if error is not None and not found:
        raise error
    with contextlib.ExitStack() as stack:
        # Runs are locked in the same order by all requests, so that none waits for another.
        runs = {name: stack.enter_context(found[name].current()) for name in sorted(found)}
        compared = comparison_of([runs[name] for name in found])
    return dataclasses.replace(compared, missing=[name for name in names if name not in found])


def refuse_linked_cell(run: Run) -> None:
    """Raise NoSuchRunError if the cell of ``run`` is not a regular file in its folder."""
    with contextlib.suppress(FileNotFoundError):
        own_file(run.folder, run.folder / "cell.py")
