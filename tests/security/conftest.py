"""One run of two ranks that waits in its cell, which the tests of this folder inspect."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from other_user import require_root
from runs_folder import runs_folder  # noqa: F401

import nbmgpu
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run

CELL = """
import os, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2, num_workers=1)
iterator = iter(loader)
batch = next(iterator)
group = dist.new_group([*range(dist.get_world_size())])  # the reference is alone
dist.all_reduce(batch.clone(), group=group)
print("address", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
print("ready")
while not os.path.exists(stop):
    time.sleep(0.05)
del iterator, group, loader
"""


STARTS = ["forked", pytest.param("fresh", marks=pytest.mark.matrix("nbmgpu/engines/local"))]
"""By the fork server, and by torchrun, which takes 15 seconds longer."""


@dataclass(frozen=True)
class WaitingRun:
    """A run whose ranks wait in their cell.

    Attributes:
        run: the run.
        started: the fork server, launcher, ranks, reference and loader workers.
    """

    run: Run
    started: list[psutil.Process]

    @property
    def processes(self) -> list[psutil.Process]:
        """Those that have not ended; the reference may."""
        return [process for process in self.started if process.is_running()]

    @property
    def master_address(self) -> tuple[str, int]:
        """``MASTER_ADDR`` and ``MASTER_PORT`` in its ranks."""
        (line,) = [line for line in self.run.log().splitlines() if line.startswith("address ")]
        _, host, port = line.split()
        return host, int(port)

    @property
    def socket_folders(self) -> list[Path]:
        """The folders of Unix domain sockets of its processes."""
        connections = [c for p in self.processes for c in p.net_connections("unix")]
        paths = {Path(c.laddr) for c in connections if str(c.laddr).startswith("/")}
        return sorted({path.parent for path in paths})


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Return when ``condition()`` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


@pytest.fixture(scope="module", params=STARTS)
def waiting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WaitingRun]:
    """The run.

    The umask is the one that hides least, and a variable for a cluster names another interface.
    """
    require_root()
    stop = tmp_path_factory.mktemp("stop") / "stop"
    before = set(psutil.Process().children(recursive=True))
    umask = os.umask(0)
    data = {"stop": str(stop)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "eth0")
        options = {"gpus": 2, "cpu": True, "background": True}
        options |= {"fresh": True} if request.param == "fresh" else {"verify": 120}
        try:
            nbmgpu.run(CELL, data, **options)
            run = find_run()
            wait_until(lambda: all("ready" in run.log(rank) for rank in range(2)))
            started = [p for p in psutil.Process().children(True) if p not in before]
            yield WaitingRun(run, started)
        finally:
            os.umask(umask)
            stop.touch()
            nbmgpu.attach(run.id)
    assert run.state == "finished", [run.log(rank) for rank in range(2)]
