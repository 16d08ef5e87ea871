"""``pick``: the strategy picker of a cell while its kernel has no time, so without its model."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from .base_handler import Handler
from .http_errors import Refusal
from .payloads import PickRequest


class PickHandler(Handler):
    """What there is to choose, for this machine."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer a ``PickRequest`` with a ``PickerState``."""
        self.answer(await self.services.work(pick, self._wish()))

    def _wish(self) -> PickRequest:
        wish = self.body(PickRequest)
        if wish is None or not isinstance(wish.line, str) or not isinstance(wish.controls, dict):
            what = "The body does not say what to pick from."
            raise Refusal(400, what, '{"line": "%%mgpu --strategy ddp", "controls": {"gpus": 2}}')
        return wish


def pick(wish: PickRequest) -> dict[str, Any]:
    """Return what a picker shows that knows no model."""
    from nbmgpu.advisor.picker_state import describe

    try:
        return describe(wish.line.partition("\n")[0], {}, wish.controls).plain()
    except TypeError as error:
        raise Refusal(400, f"The controls cannot be used: {error}.") from None
