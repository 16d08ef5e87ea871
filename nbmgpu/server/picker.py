"""``pick``: the strategy picker of a cell whose kernel is busy, so without its model."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from .base_handler import Handler
from .http_errors import ApiError
from .payloads import PickRequest


class PickHandler(Handler):
    """The picker's state for this machine."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer a ``PickRequest`` with a ``PickerState``."""
        self.answer(await self.services.run_in_thread(pick, self._request()))

    def _request(self) -> PickRequest:
        request = self.body(PickRequest)
        if (
            request is None
            or not isinstance(request.line, str)
            or not isinstance(request.controls, dict)
        ):
            what = "The body is not a PickRequest."
            raise ApiError(400, what, '{"line": "%%mgpu --strategy ddp", "controls": {"gpus": 2}}')
        return request


def pick(request: PickRequest) -> dict[str, Any]:
    """Return the state of a picker without a model."""
    from nbmgpu.advisor.picker_state import describe

    try:
        return describe(request.line.partition("\n")[0], {}, request.controls).plain()
    except TypeError as error:
        raise ApiError(400, f"The controls are invalid: {error}.") from None
