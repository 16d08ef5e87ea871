"""Runs on two nodes of a cluster on this machine, with two CPU ranks each."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import psutil
import pytest

import nbmgpu
from nbmgpu.engines.ray.engine import RayEngine
from nbmgpu.engines.registry import get_engine
from nbmgpu.runs.run import Run

ON_TWO_NODES: dict[str, Any] = {"nodes": 2, "gpus": 2, "cpu": True}

WAIT = "print('ready', flush=True)\nimport time\ntime.sleep(120)\n"


def wait(done: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until ``done`` returns something true."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stopped_in_queue(run: Run) -> str:
    """Stop a run when it is queued, from another thread; return why it is."""
    reader = Run(run.folder)

    def stop_when_queued() -> None:
        wait(lambda: reader.state == "starting" and "queued" in reader.view.notices)
        reader.stop()

    stopper = threading.Thread(target=stop_when_queued)
    stopper.start()
    try:
        with pytest.raises(KeyboardInterrupt, match="its ranks had not been started"):
            nbmgpu.attach(run.id)
    finally:
        stopper.join()
    assert run.state == "stopped"
    return reader.view.notices["queued"].text


def children() -> list[str]:
    """Return pid and command line of the heads and node launchers of this test session.

    Other sessions on this machine may run tests as well.
    """
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        names = ("nbmgpu.engines.slurm", "nbmgpu.engines.kubernetes", "multi_node", "ray.head")
        if any(name in line for name in names) and _is_of_session(process, line):
            found.append(f"{process.pid} {line}")
    return found


def _is_of_session(process: psutil.Process, line: str) -> bool:
    runs = os.environ["NBMGPU_RUNS"]
    with suppress(psutil.Error):  # it has ended
        return runs in line or process.environ().get("NBMGPU_RUNS") == runs
    return False


def wait_for_the_end(before: Collection[str]) -> None:
    """Wait until no process of ``children()`` is left but those of ``before``."""
    ray = get_engine("ray")
    assert isinstance(ray, RayEngine)

    def has_ended() -> bool:
        ray.disconnect()  # the head of the next run, which another thread may start late
        return not set(children()) - set(before)

    wait(has_ended, 60)


def started(
    engine: str, cell: str = WAIT, names: dict[str, Any] | None = None, **options: Any
) -> Run:
    """Return a background run whose ranks all run the cell."""
    namespace = {"__name__": "__main__"} if names is None else names
    run = nbmgpu.run(cell, namespace, background=True, engine=engine, **ON_TWO_NODES | options)
    assert run is not None
    wait(lambda: run.over or all("ready" in run.log(rank) for rank in range(4)))
    assert run.state == "running", (run.view.ended, run.view.restart, run.view.failure)
    return run
