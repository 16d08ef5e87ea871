"""The launch server: a process with torch imported that forks a launcher per run.

It is started in the background by ``%load_ext nbmgpu`` and ends with the kernel.
It never runs a tensor operation and keeps a single thread: what it forks is as
clean as a fresh interpreter, at a fraction of the time.  Requests come in on its
standard input, one JSON object a line; nothing listens.  In between, it imports
what the notebook has imported (``nbmgpu.engines.local.preload``), and makes itself quick to fork
(``nbmgpu.engines.local.huge_pages``).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from nbmgpu.strategies import load_strategy
from nbmgpu.system.parent_death import adopt_orphans

from .huge_pages import LargePages
from .preload import OFTEN, Preloader
from .process_environment import Inheritance

POLL = 0.25
"""Seconds between looks at whether the kernel still lives."""

BUSY_POLL = 0.02
"""The same while libraries are being imported."""

ALONE = 30.0
"""Seconds after a launch in which nothing is preloaded: the run has the machine's cores to itself.
Beside a longer one, a second of one core is not felt."""

ALONE_IF_LATE = 1.0
"""The same where an earlier run has put that work off already: of runs that follow at once on one
another only the first is left alone, else there would never be time."""


NEEDED = (
    "IPython.core.application",
    "IPython.core.completer",
    "IPython.core.completerlib",
    "IPython.core.interactiveshell",
    "IPython.core.logger",
    "IPython.core.magics",
    "IPython.core.oinspect",
    "IPython.core.profiledir",
    "bdb",
    "nbmgpu.engines.local.launcher",
    "nbmgpu.rank.main",
    "nbmgpu.strategies.none",
    "numpy",
    "torch",
    "torch.distributed",
    "torch.utils.data",
)
"""What launchers and ranks import in any case, IPython's parts when a rank makes its shell."""


def main() -> NoReturn:
    """Import what ranks need, then fork a launcher for every request."""
    adopt_orphans()
    _import(NEEDED)
    Server().serve()
    os._exit(0)  # tearing torch down takes longer than all the rest


class Server:
    """What the process knows between requests."""

    def __init__(self) -> None:
        """Have launched nothing yet."""
        self._kernel = os.getppid()
        self._pending = b""
        self._launchers: set[int] = set()
        self._launched = 0.0
        self._alone = ALONE
        self._put_off = False
        self._preloader = Preloader()
        self._pages = LargePages()

    def serve(self) -> None:
        """Answer requests until the kernel is gone, or closes its end and no run is left."""
        while os.getppid() == self._kernel:
            self._reap()
            if not select.select([0], [], [], self._pause())[0]:
                self._use_the_time()
                continue
            data = os.read(0, 1 << 16)
            if not data:
                if not self._launchers:
                    return
                time.sleep(POLL)
                continue
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        if "folder" not in request:
            self._preloader.wish(request["modules"], request["inheritance"]["environment"])
            return
        _import(request["modules"])
        waits = self._preloader.busy or self._pages.wanted
        self._alone = ALONE_IF_LATE if waits and self._put_off else ALONE
        self._put_off = waits
        self._launched = time.monotonic()
        self._launchers.add(self._fork_launcher(request))

    def _pause(self) -> float:
        """Return how long a request is waited for before the time is used."""
        if self._preloader.busy and not self._in_the_way:
            return BUSY_POLL
        return 0 if self._pages.wanted and not self._in_the_way else POLL

    @property
    def _in_the_way(self) -> bool:
        return bool(self._launchers) and time.monotonic() - self._launched < self._alone

    def _use_the_time(self) -> None:
        """Do one thing that makes later runs quicker, and that a request can wait for."""
        if self._in_the_way:
            return
        if _import(OFTEN):
            self._pages.look_again()
        elif self._preloader.busy:
            if self._preloader.turn():
                self._pages.look_again()
        elif self._pages.wanted:
            self._pages.turn()
        else:
            self._put_off = False

    def _fork_launcher(self, request: dict[str, Any]) -> int:
        server = os.getpid()
        if pid := os.fork():
            return pid
        code = 1
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1):
                os.dup2(null, fd)
            from .launcher import launch

            self._preloader.forget_stale()
            launch(request["folder"], Inheritance(**request["inheritance"]), server)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Wait for children that ended; kill those that are neither launchers nor try a library.

        A launcher ends what its ranks have started.  Only what a killed one leaves
        behind comes here.
        """
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._pages.look_again()  # a fork, or a library, has left small ones
                pid, status = ended
                if self._preloader.is_trying(pid):
                    self._preloader.tried(os.waitstatus_to_exitcode(status))
                    continue
                self._launchers.discard(pid)
                for child in psutil.Process().children():
                    if child.pid not in self._launchers and not self._preloader.is_trying(
                        child.pid
                    ):
                        with suppress(psutil.NoSuchProcess):
                            child.kill()
        except ChildProcessError:
            pass


def _import(names: Iterable[str]) -> bool:
    """Import those of ``names`` that are not here yet; return whether there were any."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if missing:
        load_strategy("ddp")  # and so looks for all that are installed, which takes longer
        gc.collect()
        gc.freeze()  # pages stay shared with the children, who need not look at these objects
    return bool(missing)
