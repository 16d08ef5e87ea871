"""If any process is killed by SIGKILL, nothing is left behind and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kernels import Notebook, wait_for

from nbmgpu.runs.run import Run

pytestmark = pytest.mark.alone

MAX_DELAY = 10.0
"""Seconds until everything of a killed kernel is removed."""

SITUATIONS = {
    "idle": 'print("ready")\nwhile True: time.sleep(0.01)',
    "workers, subprocesses and a collective": """
import subprocess
class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.01)
            yield torch.zeros(10)
batches = iter(DataLoader(Endless(), batch_size=4, num_workers=2))
next(batches)
far = subprocess.Popen(["setsid", "sleep", "1000"])
near = subprocess.Popen(["sleep", "1000"])
print("ready")
if dist.get_rank() == 0:
    dist.barrier()
!sleep 1000
""",
}


class ActiveRun:
    """A kernel with an active run, and all of its processes."""

    def __init__(self, notebook: Notebook, situation: str) -> None:
        self.notebook = notebook
        self.shm = set(os.listdir("/dev/shm"))
        self.cell = notebook.send(f"%%mgpu --gpus 2\n{SITUATIONS[situation]}").until("ready")
        self.processes = notebook.descendants()
        self.fork_server = notebook.fork_server()
        runs = (Run(folder) for folder in notebook.runs.iterdir())
        self.run = max(runs, key=lambda run: run.record.created)
        self.run.refresh()
        assert self.run.view.launcher is not None
        self.launcher = psutil.Process(self.run.view.launcher.pid)

    def left(self) -> list[str]:
        found = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found

    def assert_all_removed(self) -> None:
        wait_for(lambda: not self.left(), MAX_DELAY, self.left)
        assert set(os.listdir("/dev/shm")) <= self.shm


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_killed_kernel_leaves_nothing(
    new_notebook: Callable[..., Notebook], situation: str
) -> None:
    active = ActiveRun(new_notebook(), situation)
    os.kill(active.notebook.pid, signal.SIGKILL)
    active.assert_all_removed()


def test_a_killed_kernel_leaves_no_data_on_the_disk(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.run(
        "from nbmgpu.serialization import storage\n"
        "storage.RESERVED_BYTES = 1 << 60  # as if memory were full"
    )
    active = ActiveRun(notebook, "idle")
    storage = active.run.record.storage
    data = [Path(path) for path in (storage.bundle, *storage.results)]
    assert all(path.parent == active.run.folder and path.exists() for path in data)
    os.kill(notebook.pid, signal.SIGKILL)
    active.assert_all_removed()
    assert not any(path.exists() for path in data)


def test_a_killed_launcher_raises_an_error(notebook: Notebook) -> None:
    active = ActiveRun(notebook, "workers, subprocesses and a collective")
    active.launcher.kill()
    active.processes.remove(active.fork_server)
    assert "its launcher was killed" in active.cell.fails("LaunchError", 5)
    active.assert_all_removed()
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_killed_fork_server_is_replaced(notebook: Notebook) -> None:
    active = ActiveRun(notebook, "workers, subprocesses and a collective")
    active.fork_server.kill()
    assert "fork server has ended" in active.cell.fails("LaunchError", 5)
    active.assert_all_removed()
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]
    notebook.wait_for_ranks_to_exit(5)
    server = notebook.fork_server()
    server.kill()
    wait_for(lambda: server.status() == psutil.STATUS_ZOMBIE, 5)
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_run_stopped_at_kernel_shutdown_is_stopped(
    new_notebook: Callable[..., Notebook],
) -> None:
    active = ActiveRun(new_notebook(), "idle")
    active.run.stop()
    active.fork_server.kill()  # before the launcher has polled the stop file
    active.assert_all_removed()
    assert active.run.state == "stopped"
    assert "the kernel was shut down" in active.run.view.notices["stopped"].text


def test_a_fork_server_killed_during_a_request_raises_an_error(notebook: Notebook) -> None:
    server = notebook.fork_server()
    server.suspend()
    before = set(notebook.runs.iterdir())
    cell = notebook.send("%%mgpu --gpus 2\n1")
    wait_for(lambda: set(notebook.runs.iterdir()) - before, 5)
    server.kill()
    assert "The fork server has ended." in cell.fails("LaunchError", 5)
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_kernel_shutdown_ends_its_run(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook()
    notebook.send('%%mgpu --gpus 2 --background\nprint("ready")\ntime.sleep(1000)').until("ready")
    processes = notebook.descendants()
    notebook.client.shutdown()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive
