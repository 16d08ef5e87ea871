"""``nbmgpu attach``: follows a run of another process in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs_folder import runs_folder  # noqa: F401

import nbmgpu
from nbmgpu.errors import RankKilledError

COMMAND = [str(Path(sys.executable).with_name("nbmgpu")), "attach"]
CELL = """
import time
from pathlib import Path
for step in range(3):
    print("step", step, flush=True)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
while not Path(go).exists():
    nbmgpu.log(loss=2.5)
    time.sleep(0.02)
print("end", flush=True)
{last}
"""


def start(tmp_path, last="", **options):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(1, 1)
    names = {
        "__name__": "__main__",
        "nbmgpu": nbmgpu,
        "loader": DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "go": str(tmp_path / "go"),
    }
    options = {"gpus": 2, "cpu": True, "background": True, "strategy": "none"} | options
    run = nbmgpu.run(CELL.format(last=last), names, **options)
    assert run is not None
    return run


@contextmanager
def attach(run, **streams):
    def as_in_a_terminal():  # shells start what is in the background with SIGINT ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    options = {"text": True, "preexec_fn": as_in_a_terminal}
    with subprocess.Popen([*COMMAND, run.id], **options, **streams) as terminal:
        try:
            yield terminal
        except BaseException:
            terminal.kill()
            raise


def test_a_run_is_followed_to_its_end(tmp_path):
    run = start(tmp_path)
    with attach(run, stdout=subprocess.PIPE) as terminal:
        assert terminal.stdout is not None
        assert [next(terminal.stdout) for _ in range(3)] == [f"step {n}\n" for n in range(3)]
        (tmp_path / "go").touch()
        rest = terminal.stdout.read()
    assert terminal.returncode == 0
    assert re.match(r"end\nfinished +none on 2", rest)
    assert "Its results" not in rest, "its own kernel writes them back"
    nbmgpu.attach(run.id)


def test_an_interrupt_ends_the_waiting_alone(tmp_path):
    run = start(tmp_path)
    with attach(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as terminal:
        assert terminal.stdout is not None
        assert terminal.stderr is not None
        assert next(terminal.stdout) == "step 0\n"
        terminal.send_signal(signal.SIGINT)
        assert f"Run {run.id} goes on. nbmgpu attach {run.id}" in terminal.stderr.read()
    assert terminal.returncode == 130
    assert run.state == "running"
    (tmp_path / "go").touch()
    nbmgpu.attach(run.id)
    assert run.state == "finished"


def test_the_exit_code_says_that_a_run_has_failed(tmp_path):
    (tmp_path / "go").touch()
    run = start(tmp_path, "import os; os.kill(os.getpid(), 9)")
    done = subprocess.run(
        [*COMMAND, run.id], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert re.search(r"^failed +none on 2", done.stdout, re.MULTILINE)
    with pytest.raises(RankKilledError):
        nbmgpu.attach(run.id)


def read_until(pattern, fd):
    """Return what can be read, until it has ``pattern``."""
    shown, deadline = "", time.monotonic() + 30
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 1 << 16).decode()
    return shown


def test_progress_is_a_line_below_the_log(tmp_path):
    run = start(tmp_path, strategy="ddp")
    ours, theirs = pty.openpty()
    with attach(run, stdout=theirs, stderr=theirs) as terminal:
        os.close(theirs)
        line = r"\r\x1b\[2Krunning [\d: s]+ · epoch 3 of 3 2 / 2 · loss [\d.-]+"
        shown = read_until(line, ours)
        (tmp_path / "go").touch()
        shown += read_until("folder", ours)
    assert terminal.returncode == 0
    assert "\r\x1b[2Kend\r\n" in shown, "the line makes room for the log"
    os.close(ours)
    nbmgpu.attach(run.id)


def test_the_results_of_a_detached_run_wait_for_a_notebook(tmp_path):
    source = (
        "import nbmgpu, sys\n"
        "run = nbmgpu.run('n = 3', {'__name__': '__main__'}, gpus=1, cpu=True, detach=True)\n"
        "print(run.id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    run = nbmgpu.find_run(done.stdout.split()[-1])
    followed = subprocess.run(
        [*COMMAND, run.id], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"%mgpu attach {run.id} in a notebook writes them into it." in followed.stdout
