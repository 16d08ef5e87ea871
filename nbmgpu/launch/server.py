"""The launch server: a process with torch imported that forks a launcher per run.

It is started in the background by ``%load_ext nbmgpu`` and ends with the kernel.
It never runs a tensor operation and keeps a single thread: what it forks is as
clean as a fresh interpreter, at a fraction of the time.  Requests come in on its
standard input, one JSON object a line; nothing listens.  In between, it imports
what the notebook has imported (see ``nbmgpu.launch.preload``).
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import traceback
from typing import Any

import psutil

from .preload import Preloader
from .processes import adopt_orphans

POLL = 0.25
"""Seconds between looks at whether the kernel still lives."""

BUSY_POLL = 0.02
"""The same while libraries are being imported."""


def main() -> None:
    """Import what ranks need, then fork a launcher for every request."""
    kernel = os.getppid()
    adopt_orphans()
    _preload()
    gc.collect()
    gc.freeze()  # pages stay shared with the children, who need not look at these objects
    pending = b""
    launchers: set[int] = set()
    preloader = Preloader()
    while os.getppid() == kernel:
        _reap(launchers, preloader)
        if not select.select([0], [], [], BUSY_POLL if preloader.busy else POLL)[0]:
            preloader.turn()
            continue
        data = os.read(0, 1 << 16)
        if not data:
            return  # the kernel has closed its end
        *lines, pending = (pending + data).split(b"\n")
        for request in map(json.loads, lines):
            if "folder" in request:
                launchers.add(_fork_launcher(request, preloader))
            else:
                preloader.wish(request["modules"], request["environment"])


def _preload() -> None:
    import IPython.core.interactiveshell
    import numpy as np
    import torch
    import torch._dynamo  # an optimizer imports it when it is made: a second in every rank
    import torch.distributed as dist
    import torch.utils.data

    from nbmgpu.rank import main as rank_main
    from nbmgpu.strategies import load_strategy

    load_strategy("ddp")
    _ = IPython, np, torch, dist, rank_main


def _fork_launcher(request: dict[str, Any], preloader: Preloader) -> int:
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

        preloader.forget_stale()
        launch(request["folder"], request["environment"], server)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(launchers: set[int], preloader: Preloader) -> None:
    """Wait for children that ended; kill those that are neither launchers nor try a library.

    A launcher ends what its ranks have started.  Only what a killed one leaves
    behind comes here.
    """
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            if preloader.is_trying(pid):
                preloader.tried(os.waitstatus_to_exitcode(status))
                continue
            launchers.discard(pid)
            for child in psutil.Process().children():
                if child.pid not in launchers and not preloader.is_trying(child.pid):
                    child.kill()
    except (ChildProcessError, psutil.NoSuchProcess):
        pass


if __name__ == "__main__":
    main()
    os._exit(0)  # tearing torch down takes longer than all the rest
