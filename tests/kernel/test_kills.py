"""Whoever is killed with -9, nothing is left behind, and nobody hangs."""

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

GONE = 10.0
"""Seconds after which nothing may be left of a killed kernel."""

SITUATIONS = {
    "idle": 'print("ready")\nwhile True: time.sleep(0.01)',
    "all at once": """
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


class Scene:
    """A kernel with a run in full swing, and every process that there is."""

    def __init__(self, notebook: Notebook, situation: str) -> None:
        self.notebook = notebook
        self.shm = set(os.listdir("/dev/shm"))
        self.cell = notebook.send(f"%%mgpu --gpus 2\n{SITUATIONS[situation]}").until("ready")
        self.processes = notebook.descendants()
        self.server = notebook.server()
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

    def assert_nothing_is_left(self) -> None:
        wait_for(lambda: not self.left(), GONE, self.left)
        assert set(os.listdir("/dev/shm")) <= self.shm


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_killed_kernel_leaves_nothing(
    new_notebook: Callable[..., Notebook], situation: str
) -> None:
    scene = Scene(new_notebook(), situation)
    os.kill(scene.notebook.pid, signal.SIGKILL)
    scene.assert_nothing_is_left()


def test_a_killed_kernel_leaves_no_data_on_the_disk(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.run(
        "from nbmgpu.serialization import storage\n"
        "storage.RESERVED_BYTES = 1 << 60  # as if memory were full"
    )
    scene = Scene(notebook, "idle")
    data = [Path(path) for path in (scene.run.record.bundle, *scene.run.record.results)]
    assert all(path.parent == scene.run.folder and path.exists() for path in data)
    os.kill(notebook.pid, signal.SIGKILL)
    scene.assert_nothing_is_left()
    assert not any(path.exists() for path in data)


def test_a_killed_launcher_is_an_error_and_not_a_hang(notebook: Notebook) -> None:
    scene = Scene(notebook, "all at once")
    scene.launcher.kill()
    scene.processes.remove(scene.server)
    assert "its launcher was killed" in scene.cell.fails("LaunchError", 5)
    scene.assert_nothing_is_left()
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_killed_launch_server_is_replaced(notebook: Notebook) -> None:
    scene = Scene(notebook, "all at once")
    scene.server.kill()
    assert "fork server, has ended" in scene.cell.fails("LaunchError", 5)
    scene.assert_nothing_is_left()
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]
    notebook.gone(5)
    server = notebook.server()
    server.kill()
    wait_for(lambda: server.status() == psutil.STATUS_ZOMBIE, 5)
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_run_that_a_kernel_stops_with_its_last_breath_is_a_stopped_one(
    new_notebook: Callable[..., Notebook],
) -> None:
    scene = Scene(new_notebook(), "idle")
    scene.run.stop()
    scene.server.kill()  # before the launcher has looked again at what it is asked
    scene.assert_nothing_is_left()
    assert scene.run.state == "stopped"


def test_a_launch_server_that_dies_with_a_request_is_an_error(notebook: Notebook) -> None:
    server = notebook.server()
    server.suspend()
    before = set(notebook.runs.iterdir())
    cell = notebook.send("%%mgpu --gpus 2\n1")
    wait_for(lambda: set(notebook.runs.iterdir()) - before, 5)
    server.kill()
    assert "The fork server has ended." in cell.fails("LaunchError", 5)
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_a_kernel_that_is_shut_down_takes_its_run_along(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook()
    notebook.send('%%mgpu --gpus 2 --background\nprint("ready")\ntime.sleep(1000)').until("ready")
    processes = notebook.descendants()
    notebook.client.shutdown()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive
