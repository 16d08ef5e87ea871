"""The fork server: a process with torch imported that forks one launcher per run.

``%load_ext nbmgpu`` starts it in the background; it ends with the kernel.  It never runs a tensor
operation and keeps a single thread, so that what it forks is as clean as a new interpreter, at a
fraction of the time.  Requests arrive on its standard input, one JSON object per line; nothing
listens on a port.  While idle it imports what the notebook has imported (``preload``), and makes
itself quick to fork (``huge_pages``).
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
from pathlib import Path
from typing import Any, NoReturn

from nbmgpu.strategies import load_strategy
from nbmgpu.system.parent_death import adopt_orphans, exit_with_parent, outlive_grandparent

from .ended_launcher import kill_orphans, report_end
from .huge_pages import LargePages
from .preload import COMMON_MODULES, Preloader
from .process_environment import ProcessEnvironment

POLL = 0.25
"""Seconds between two checks whether the kernel is alive."""

BUSY_POLL = 0.02
"""The same while libraries are being imported."""

QUIET_PERIOD = 30.0
"""Seconds after a launch without background work: the run has the machine's cores to itself.  In
a longer run, a second of one core makes no difference."""

SHORT_QUIET_PERIOD = 1.0
"""The same where an earlier run has postponed that work already.  Of runs that follow one another
at once only the first is left alone, or there would never be time."""

REQUIRED_MODULES = (
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
"""What launchers and ranks import in any case; IPython's modules when a rank makes its shell."""


def main(kernel: int) -> NoReturn:
    """Import what ranks need, then fork a launcher for every request.

    Args:
        kernel: pid of the kernel, with which this process ends.
    """
    exit_with_parent(kernel)
    adopt_orphans()
    import_missing(REQUIRED_MODULES)
    ForkServer(kernel).serve()
    os._exit(0)  # tearing torch down takes longer than all the rest


class ForkServer:
    """The state of the server between requests."""

    def __init__(self, kernel: int) -> None:
        """Start without launchers, for the kernel with that pid."""
        self._kernel = kernel
        self._unparsed = b""
        self._launchers: dict[int, Path] = {}  # run folders by pid of launchers and guards
        self._last_launch = 0.0
        self._quiet_period = QUIET_PERIOD
        self._postponed = False
        self._preloader = Preloader()
        self._pages = LargePages()

    def serve(self) -> None:
        """Handle requests until the kernel is gone, or has closed the pipe and no run is left."""
        while os.getppid() == self._kernel:
            self._reap()
            if not select.select([0], [], [], self._poll_timeout())[0]:
                self._work_while_idle()
                continue
            data = os.read(0, 1 << 16)
            if not data:
                if not self._launchers:
                    return
                time.sleep(POLL)
                continue
            *lines, self._unparsed = (self._unparsed + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))

    def _handle(self, request: dict[str, Any]) -> None:
        if "folder" not in request:
            self._preloader.request(request["modules"], request["environment"]["variables"])
            return
        import_missing(request["modules"])
        pending = self._preloader.busy or self._pages.pending
        self._quiet_period = SHORT_QUIET_PERIOD if pending and self._postponed else QUIET_PERIOD
        self._postponed = pending
        self._last_launch = time.monotonic()
        self._launchers[self._fork_launcher(request)] = Path(request["folder"])

    def _poll_timeout(self) -> float:
        """Return the seconds to wait for a request before working in the background."""
        if self._preloader.busy and not self._is_quiet:
            return BUSY_POLL
        return 0 if self._pages.pending and not self._is_quiet else POLL

    @property
    def _is_quiet(self) -> bool:
        """Whether background work would disturb a run that has just started."""
        recent = time.monotonic() - self._last_launch < self._quiet_period
        return bool(self._launchers) and recent

    def _work_while_idle(self) -> None:
        """Take one step that makes later runs start faster, and that a request can wait for."""
        if self._is_quiet:
            return
        if import_missing(COMMON_MODULES):
            self._pages.rescan()
        elif self._preloader.busy:
            if self._preloader.advance():
                self._pages.rescan()
        elif self._pages.pending:
            self._pages.collapse_next()
        else:
            self._postponed = False

    def _fork_launcher(self, request: dict[str, Any]) -> int:
        server = os.getpid()
        if pid := os.fork():
            return pid
        code = 1
        try:
            outlive_grandparent()
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1):
                os.dup2(null, fd)
            self._preloader.drop_reinstalled()
            _launch(request, server)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Wait for children that ended; kill those that are neither launchers nor trials.

        A launcher ends what its ranks have started.  Only what a killed launcher leaves behind
        becomes a child of this process.
        """
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._pages.rescan()  # a fork, or an import, has left small pages
                pid, status = ended
                if self._preloader.is_trial(pid):
                    self._preloader.end_trial(os.waitstatus_to_exitcode(status))
                    continue
                folder = self._launchers.pop(pid, None)
                kill_orphans(lambda pid: pid in self._launchers or self._preloader.is_trial(pid))
                if folder is not None and status:
                    report_end(folder, os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            pass


def _launch(request: dict[str, Any], server: int) -> None:
    """Be the launcher of a run, or the guard of a detached one's launcher."""
    from .guard import guard_launcher
    from .launcher import launch, redirect_output

    folder = Path(request["folder"])
    environment = ProcessEnvironment(**request["environment"])
    if not request["detached"]:
        launch(folder, environment, server)
        return
    redirect_output(folder)  # not into a file of the kernel
    guard_launcher(folder, environment, lambda guard: launch(folder, environment, guard))


def import_missing(names: Iterable[str]) -> bool:
    """Import those of ``names`` that are not imported yet; return whether there were any."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if missing:
        load_strategy("ddp")  # this reads all entry points, which takes longer
        gc.collect()
        gc.freeze()  # pages stay shared with the children, which need not scan these objects
    return bool(missing)
