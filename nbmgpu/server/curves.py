"""``runs/<id>/curve``: a range of a metric at a higher resolution than streams send."""

from __future__ import annotations

import math

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.curves import CurveRequest

from .base_handler import Handler


class CurveHandler(Handler):
    """A range of one metric."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with a ``CurveLine``, or null; the query has the fields of ``CurveRequest``."""
        request = CurveRequest(
            name=self.get_query_argument("name", "loss", strip=False),
            first=self.number("first", -math.inf),
            last=self.number("last", math.inf),
        )
        self.answer(
            await self.services.run_in_thread(self.services.opened.curve_detail, name, request)
        )
