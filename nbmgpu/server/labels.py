"""``runs/<id>/labels``: the name, the tags and the note of a run."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.errors import OptionError
from nbmgpu.runs.field_types import has_declared_types
from nbmgpu.runs.labels import RunLabels

from .base_handler import Handler
from .http_errors import ApiError, error_response
from .run_folders import open_run


class LabelsHandler(Handler):
    """The labels of one run."""

    @web.authenticated
    @authorized
    async def put(self, name: str) -> None:
        """Replace the labels by the ``RunLabels`` in the body, and answer with them."""
        labels = self.body(RunLabels)
        if labels is None or not has_declared_types(labels):
            what = "The body is not RunLabels."
            raise ApiError(400, what, '{"name": "", "tags": [], "note": ""}')
        self.answer(await self.services.run_in_thread(label, name, labels))


def label(name: str, labels: RunLabels) -> RunLabels:
    """Write the labels of the run ``name``."""
    try:
        return open_run(name, ranks=0).label(labels.name, labels.tags, labels.note)
    except OptionError as error:
        raise error_response(400, error) from None
