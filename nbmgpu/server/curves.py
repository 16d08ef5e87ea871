"""``runs/<id>/curve``: a stretch of a metric in more detail than travels by itself."""

from __future__ import annotations

import math

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.report.curves import CurveRequest

from .base_handler import Handler


class CurveHandler(Handler):
    """A part of one metric."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with a ``CurveLine``, or null; the query has the fields of ``CurveRequest``."""
        request = CurveRequest(
            name=self.get_query_argument("name", "loss", strip=False),
            first=self.number("first", -math.inf),
            last=self.number("last", math.inf),
        )
        self.answer(await self.services.work(self.services.opened.curve_detail, name, request))
