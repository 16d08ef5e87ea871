"""``runs/<id>/ranks``: the rows of the ranks on some nodes of a run."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.node_rows import RankRequest

from .base_handler import Handler
from .http_errors import ApiError


class RanksHandler(Handler):
    """The ranks on some nodes."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with a list of ``RankRow``; ``nodes`` has numbers of nodes: ``nodes=0,3``."""
        request = RankRequest(node_numbers(self.get_query_argument("nodes", "")))
        self.answer(
            await self.services.run_in_thread(self.services.opened.rank_rows, name, request)
        )


def node_numbers(text: str) -> list[int]:
    """Return the numbers of a list such as ``0,3``.

    Raises:
        ApiError: It has something else.
    """
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        what = f"nodes={text[:40]!r} is not a list of numbers."
        raise ApiError(400, what, "nodes=0,3") from None
