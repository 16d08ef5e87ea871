"""The launch server: a process with torch imported that forks a launcher per run.

It is started in the background by ``%load_ext nbmgpu`` and ends with the kernel.
It never runs a tensor operation and keeps a single thread: what it forks is as
clean as a fresh interpreter, at a fraction of the time.  Requests come in on its
standard input, one JSON object a line; nothing listens.
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

from .processes import adopt_orphans

POLL = 0.25
"""Seconds between looks at whether the kernel still lives."""


def main() -> None:
    """Import what ranks need, then fork a launcher for every request."""
    kernel = os.getppid()
    adopt_orphans()
    _preload()
    gc.collect()
    gc.freeze()  # pages stay shared with the children, who need not look at these objects
    pending = b""
    launchers: set[int] = set()
    while os.getppid() == kernel:
        _reap(launchers)
        if not select.select([0], [], [], POLL)[0]:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            return  # the kernel has closed its end
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            launchers.add(_fork_launcher(json.loads(line)))


def _preload() -> None:
    import IPython.core.interactiveshell
    import numpy as np
    import torch
    import torch._dynamo  # replicate() imports it: more than a second in every rank
    import torch.distributed as dist
    import torch.utils.data

    from nbmgpu.rank import main as rank_main
    from nbmgpu.strategies import load_strategy

    load_strategy("ddp")
    _ = IPython, np, torch, dist, rank_main


def _fork_launcher(request: dict[str, Any]) -> int:
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

        launch(request["folder"], request["environment"], server)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(launchers: set[int]) -> None:
    """Wait for children that ended; kill those that are no launchers.

    A launcher ends what its ranks have started.  Only what a killed one leaves
    behind comes here.
    """
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            launchers.discard(pid)
            for child in psutil.Process().children():
                if child.pid not in launchers:
                    child.kill()
    except (ChildProcessError, psutil.NoSuchProcess):
        pass


if __name__ == "__main__":
    main()
    os._exit(0)  # tearing torch down takes longer than all the rest
