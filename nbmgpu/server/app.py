"""The Jupyter server extension application and its table of routes."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from jupyter_server.extension.application import ExtensionApp
from tornado import web

from .base_handler import Handler
from .catalogue import CatalogueHandler
from .curves import CurveHandler
from .http_errors import ApiError
from .labels import LabelsHandler
from .logs import LogFileHandler, LogsHandler
from .metrics import MetricsHandler
from .picker import PickHandler
from .ranks import RanksHandler
from .run_comparison import CompareHandler
from .runs import DiskUsageHandler, RunHandler, RunsHandler, StopHandler, SummaryHandler
from .services import KEY, Services
from .status import StatusHandler
from .streams import RunStream, UpdateStream
from .tensorboard import TensorBoardHandler, TensorBoardListHandler
from .traces import TraceHandler

API = "/nbmgpu/api"
RUN = API + r"/runs/([^/]+)"


class NotFoundHandler(Handler):
    """Answers requests for unknown routes."""

    @web.authenticated
    @authorized
    async def get(self, *_path: str) -> None:
        """Raise a 404 error."""
        raise ApiError(404, "nbmgpu has no such route.", "See docs/server.md for the routes.")

    post = put = patch = delete = get


ROUTES = [
    (API + "/status", StatusHandler),
    (API + "/catalogue", CatalogueHandler),
    (API + "/pick", PickHandler),
    (API + "/stream", UpdateStream),
    (API + "/runs", RunsHandler),
    (API + "/disk", DiskUsageHandler),
    (API + "/compare", CompareHandler),
    (RUN, RunHandler),
    (RUN + "/summary", SummaryHandler),
    (RUN + "/stop", StopHandler),
    (RUN + "/stream", RunStream),
    (RUN + "/curve", CurveHandler),
    (RUN + "/metrics.csv", MetricsHandler),
    (RUN + "/labels", LabelsHandler),
    (RUN + "/ranks", RanksHandler),
    (RUN + "/logs", LogsHandler),
    (RUN + r"/logs/(\d{1,5})/download", LogFileHandler),
    (RUN + r"/traces/(\d{1,5})", TraceHandler),
    (RUN + "/tensorboard", TensorBoardListHandler),
    (RUN + r"/tensorboard/(\d{1,5})/.*", TensorBoardHandler),
    (API + "/.*", NotFoundHandler),
]
"""All routes, relative to the server's base URL."""


class NbmgpuServer(ExtensionApp):
    """Serves the runs and devices of this machine."""

    name = "nbmgpu"
    load_other_extensions = True

    def initialize_settings(self) -> None:
        """Create the services that all handlers share."""
        self.settings[KEY] = Services()

    def initialize_handlers(self) -> None:
        """Register the routes."""
        self.handlers.extend(ROUTES)

    async def stop_extension(self) -> None:
        """Stop the threads and release the GPU driver."""
        self.settings[KEY].close()
