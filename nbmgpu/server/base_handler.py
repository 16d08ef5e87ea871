"""Base classes of the handlers: authentication, JSON responses and error responses."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeVar

from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from .http_errors import ApiError, api_error_of
from .services import KEY, Services

N = TypeVar("N", int, float)
T = TypeVar("T")

RESOURCE = "nbmgpu"
"""The resource name passed to the server's authorizer."""


class AuthenticatedHandler(JupyterHandler):
    """A route that requires a logged-in user for every HTTP method, including unsupported ones."""

    auth_resource = RESOURCE

    async def prepare(self, **options: Any) -> None:
        """Raise a 403 error without a user, except for CORS preflight requests."""
        await super().prepare(**options)
        if self.current_user is None and self.request.method != "OPTIONS":
            raise web.HTTPError(403)

    @property
    def services(self) -> Services:
        """The services that all handlers of this server share."""
        found: Services = self.settings[KEY]
        return found


class Handler(AuthenticatedHandler, APIHandler):
    """A REST route. Its methods also need ``web.authenticated`` and ``authorized``."""

    _track_activity = False  # an open page must not prevent culling of an idle server

    def answer(self, payload: Any, status: int = 200) -> None:
        """Send a dataclass or plain data as JSON and finish the response."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(to_json(payload))

    def number(self, name: str, default: N) -> N:
        """Return a query argument as a number of the type of ``default``.

        Raises:
            ApiError: The argument is not such a number.
        """
        text = self.get_query_argument(name, str(default))
        try:
            return type(default)(text)
        except ValueError:
            kind = "an integer" if isinstance(default, int) else "a number"
            what = f"{name}={text[:40]!r} is not {kind}."
            raise ApiError(400, what, f"{name}={default}") from None

    def body(self, kind: type[T]) -> T | None:
        """Return the JSON body as a dataclass ``kind``, or None if it has other fields."""
        try:
            return kind(**json.loads(self.request.body or b"{}"))
        except (ValueError, TypeError, RecursionError):
            return None

    def log_exception(self, *raised: Any) -> None:
        """Log tracebacks of internal errors only; other errors are in the access log."""
        if api_error_of(raised[1]).status_code >= 500:
            super().log_exception(*raised)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send the error as ``{message, hint}``."""
        error = api_error_of(kwargs.get("exc_info", (None, None, None))[1])
        if self.get_status() != error.status_code:
            self.set_status(error.status_code)
        self.finish(to_json(error.body))


def to_json(payload: Any) -> str:
    """Return dataclasses and plain data as JSON; infinities and NaN become null."""
    try:
        return json.dumps(payload, separators=(",", ":"), default=vars, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(payload), separators=(",", ":"))


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return _finite(vars(value)) if dataclasses.is_dataclass(value) else value
