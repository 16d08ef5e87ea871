"""The extension itself: every route, in one table."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from jupyter_server.extension.application import ExtensionApp
from tornado import web

from .base_handler import Handler
from .choices import CatalogueHandler
from .curves import CurveHandler
from .http_errors import Refusal
from .logs import LogFileHandler, LogsHandler
from .picker import PickHandler
from .runs import RunHandler, RunsHandler, StopHandler, SummaryHandler
from .services import KEY, Services
from .status import StatusHandler
from .streams import NewsStream, RunStream

API = "/nbmgpu/api"
RUN = API + r"/runs/([^/]+)"


class NoHandler(Handler):
    """Whatever else is asked for."""

    @web.authenticated
    @authorized
    async def get(self, *_path: str) -> None:
        """Say that there is nothing here."""
        raise Refusal(404, "nbmgpu has no such route.", "docs/server.md has a list of them.")

    post = put = patch = delete = get


ROUTES = [
    (API + "/status", StatusHandler),
    (API + "/catalogue", CatalogueHandler),
    (API + "/pick", PickHandler),
    (API + "/stream", NewsStream),
    (API + "/runs", RunsHandler),
    (RUN, RunHandler),
    (RUN + "/summary", SummaryHandler),
    (RUN + "/stop", StopHandler),
    (RUN + "/stream", RunStream),
    (RUN + "/curve", CurveHandler),
    (RUN + "/logs", LogsHandler),
    (RUN + r"/logs/(\d{1,5})/download", LogFileHandler),
    (API + "/.*", NoHandler),
]
"""Every route, below the server's base URL."""


class NbmgpuServer(ExtensionApp):
    """Runs and devices of this machine, for the pages of this server."""

    name = "nbmgpu"
    load_other_extensions = True

    def initialize_settings(self) -> None:
        """Make what the handlers share."""
        self.settings[KEY] = Services()

    def initialize_handlers(self) -> None:
        """Add the routes."""
        self.handlers.extend(ROUTES)

    async def stop_extension(self) -> None:
        """Let threads and devices go."""
        self.settings[KEY].close()
