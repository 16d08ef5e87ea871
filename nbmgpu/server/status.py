"""``status``: versions, devices and configuration problems."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu._version import __version__
from nbmgpu.runs.folder import runs_root

from .base_handler import Handler
from .payloads import ServerStatus
from .services import Services


class StatusHandler(Handler):
    """The current state of the machine."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``ServerStatus``."""
        root = str(getattr(self.contents_manager, "root_dir", ""))  # not on remote ones
        self.answer(await self.services.run_in_thread(server_status, self.services, root))


def server_status(services: Services, server_root: str) -> ServerStatus:
    """Return the current state of devices and folders."""
    devices = services.devices.read()
    return ServerStatus(__version__, devices, str(runs_root()), server_root, services.problems())
