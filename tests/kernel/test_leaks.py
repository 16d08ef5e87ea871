"""Runs leak no files, threads, processes or shared memory; saved notebooks have no widget."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from kernels import WIDGET, Notebook, wait_for
from nbclient import NotebookClient

OPEN_RESOURCES = "gc.collect() < 0, len(os.listdir('/proc/self/fd')), threading.active_count()"


@pytest.mark.alone
def test_twenty_runs_leak_nothing_in_the_kernel(notebook: Notebook) -> None:
    notebook.run("import gc, threading")
    shm = set(os.listdir("/dev/shm"))
    notebook.run("%%mgpu --gpus 2\nfor x, y in loader: pass")
    notebook.send("%%mgpu --gpus 2\n1 / 0").fails("ZeroDivisionError")
    before = _open_resources(notebook)
    for number in range(20):
        if number % 5 == 4:
            notebook.send("%%mgpu --gpus 2\n1 / 0").fails("ZeroDivisionError")
        else:
            notebook.run("%%mgpu --gpus 2\nfor x, y in loader: pass")
    assert _open_resources(notebook) == before
    notebook.wait_for_ranks_to_exit(5)
    server = notebook.fork_server()
    assert server.num_threads() == 1
    assert server.num_fds() < 20
    assert set(os.listdir("/dev/shm")) <= shm
    assert [p for p in psutil.Process(notebook.pid).children() if _is_zombie(p)] == []


def test_a_run_and_its_results_are_freed_after_the_next_one(notebook: Notebook) -> None:
    notebook.run("import gc, weakref")
    notebook.run("%%mgpu --gpus 2\nlarge = torch.zeros(1_000_000)")
    notebook.run("run = weakref.ref(nbmgpu.last_run)")
    notebook.run("%%mgpu --gpus 2\nlarge = torch.zeros(1_000_000)")
    assert notebook.value("gc.collect() < 0, run()") == (False, None)


def _open_resources(notebook: Notebook) -> Any:
    """Count open files and threads, after short-lived threads have ended."""
    notebook.run("import time; time.sleep(1)")
    return notebook.value(OPEN_RESOURCES)


def _is_zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return False


def test_dataloader_workers_leave_no_socket_folders(
    tmp_path: Path, new_notebook: Callable[..., Notebook]
) -> None:
    folder = tmp_path / "t"  # paths of sockets have at most 107 bytes
    folder.mkdir()
    notebook = new_notebook(TMPDIR=str(folder))
    notebook.run("loader = DataLoader(loader.dataset, 8, num_workers=2)")
    notebook.run("%%mgpu --gpus 2\nbatches = iter(loader); batch = next(batches)")
    notebook.run("%%mgpu --gpus 2 --fresh\nbatches = iter(loader); batch = next(batches)")
    cell = "%%mgpu --gpus 2\nfor x, y in loader: print('here', flush=True); time.sleep(60)"
    running = notebook.send(cell).until("here")
    notebook.interrupt()
    running.wait()
    kill = "%%mgpu --gpus 2\nfor x, y in loader: os.kill(os.getpid(), signal.SIGKILL)"
    notebook.send(kill).fails("RankKilledError")
    notebook.wait_for_ranks_to_exit(5)
    others = {f"torchinductor_{getpass.getuser()}"}
    wait_for(lambda: set(os.listdir(folder)) <= others, 10, lambda: os.listdir(folder))


def test_dataloader_workers_run_where_the_path_of_temporary_files_is_long(
    tmp_path: Path, new_notebook: Callable[..., Notebook]
) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    notebook = new_notebook(TMPDIR=str(folder))
    notebook.run("loader = DataLoader(loader.dataset, 8, num_workers=2)")
    notebook.run("%%mgpu --gpus 2\nrows = sum(len(x) for x, y in loader)")
    assert notebook.value("rows") == 20


POOLS = """%%mgpu --gpus 2
from multiprocessing import Pool
with Pool(2) as pool:
    found = pool.map(abs, range(-4, 0))
    busy = pool.map_async(time.sleep, [60, 60])
    time.sleep(0.5)
del busy
"""


def test_joblib_leaves_nothing_in_shared_memory(notebook: Notebook) -> None:
    found = notebook.run("""%%mgpu --gpus 2
import joblib, numpy as np
large = np.ones(1_000_000)
sums = joblib.Parallel(n_jobs=2)(joblib.delayed(np.sum)(large) for _ in range(4))
pids = [0, 0]
dist.all_gather_object(pids, os.getpid())
if dist.get_rank() == 0:
    print(len([n for n in os.listdir("/dev/shm") if str(os.getpid()) in n]))
""")
    assert int(found.seen[0]) > 1  # while the cell runs: semaphores and a folder
    assert notebook.value("list(map(float, sums))") == [1e6] * 4
    pids = notebook.value("pids")
    left = [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in pids)]
    assert left == []


def test_a_multiprocessing_pool_logs_no_traceback(notebook: Notebook) -> None:
    notebook.run(POOLS)
    logs = notebook.value(
        "[p.read_text() for p in sorted((nbmgpu.last_run.folder / 'logs').glob('rank*'))]"
    )
    assert len(logs) == 2
    assert not any("Traceback" in log for log in logs)
    assert notebook.value("found") == [4, 3, 2, 1]


def test_a_saved_notebook_has_the_summary_and_no_widget(tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source)
            for source in (
                "%load_ext nbmgpu",
                "import torch, torch.nn as nn, torch.nn.functional as F\n"
                "from torch.utils.data import DataLoader, TensorDataset\n"
                "model = nn.Linear(4, 2)\n"
                "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                "data = TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))\n"
                "loader = DataLoader(data, batch_size=8)",
                "%%mgpu --gpus 2\n"
                "print('begin')\n"
                "for x, y in loader:\n"
                "    loss = F.cross_entropy(model(x), y)\n"
                "    loss.backward()\n"
                "    optimizer.step()\n"
                "loss.shape",
            )
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    folders = {
        "NBMGPU_RUNS": str(tmp_path / "runs"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    (tmp_path / "runtime").mkdir()
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=os.environ | folders)
    nbformat.write(book, tmp_path / "executed.ipynb")
    outputs: list[Any] = nbformat.read(tmp_path / "executed.ipynb", as_version=4).cells[2].outputs
    kinds = [output.output_type for output in outputs]
    assert kinds == ["display_data", "stream", "execute_result"]
    summary = outputs[0].data
    assert set(summary) == {"text/html", "text/plain"}
    assert "finished" in summary["text/plain"]
    assert "<svg" in summary["text/html"]
    assert outputs[1].text == "begin\n"
    assert outputs[2].data["text/plain"] == "torch.Size([])"
    assert WIDGET not in nbformat.writes(book).replace("\\", "")
