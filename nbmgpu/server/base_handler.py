"""What all REST handlers have in common: who may ask, and how answers and refusals look."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeVar

from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from .http_errors import Refusal, refusal_of
from .services import KEY, Services

N = TypeVar("N", int, float)
T = TypeVar("T")

RESOURCE = "nbmgpu"
"""The name under which an authorizer of the server knows all this."""


class ForUsers(JupyterHandler):
    """A route for those who are logged in; others do not even learn which methods it has."""

    auth_resource = RESOURCE

    async def prepare(self, **options: Any) -> None:
        """Turn strangers away.  Only a browser's question before the question may pass."""
        await super().prepare(**options)
        if self.current_user is None and self.request.method != "OPTIONS":
            raise web.HTTPError(403)

    @property
    def services(self) -> Services:
        """What the handlers of this server share."""
        found: Services = self.settings[KEY]
        return found


class Handler(ForUsers, APIHandler):
    """A REST route.  Its methods carry ``web.authenticated`` and ``authorized`` as well."""

    _track_activity = False  # a page that looks at runs is no reason to keep a server from resting

    def answer(self, payload: Any, status: int = 200) -> None:
        """Finish with a dataclass or plain data as JSON."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(to_json(payload))

    def number(self, name: str, default: N) -> N:
        """Return a number of the query, of the kind of ``default``.

        Raises:
            Refusal: it is none.
        """
        text = self.get_query_argument(name, str(default))
        try:
            return type(default)(text)
        except ValueError:
            kind = "whole number" if isinstance(default, int) else "number"
            raise Refusal(400, f"{name}={text[:40]!r} is no {kind}.", f"{name}={default}") from None

    def body(self, kind: type[T]) -> T | None:
        """Return the body as a ``kind``, a dataclass of which it gives the fields; else None."""
        try:
            return kind(**json.loads(self.request.body or b"{}"))
        except (ValueError, TypeError):
            return None

    def log_exception(self, *raised: Any) -> None:
        """Keep tracebacks for what is nobody's wish; a refusal has its line in the log anyway."""
        if refusal_of(raised[1]).status_code >= 500:
            super().log_exception(*raised)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Say what went wrong as ``{message, hint}``."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        refusal = refusal_of(error)
        if self.get_status() != refusal.status_code:
            self.set_status(refusal.status_code)
        self.finish(to_json(refusal.problem))


def to_json(payload: Any) -> str:
    """Return dataclasses and plain data as JSON; what is no number to a browser becomes null."""
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
