"""The command ``nbmgpu`` of a terminal, with a run in another process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from runs_folder import runs_folder  # noqa: F401
from staged import Stage

import nbmgpu
from nbmgpu.frontend.command_line import main
from nbmgpu.runs.run_list import list_runs

COMMAND = [str(Path(sys.executable).with_name("nbmgpu"))]


def terminal(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_run_is_listed_shown_followed_and_stopped() -> None:
    cell = """
import time
for step in range(10_000):
    print("step", step, flush=True)
    time.sleep(0.02)
"""
    run = nbmgpu.run(cell, {"__name__": "__main__"}, gpus=2, cpu=True, background=True)
    assert run is not None
    deadline = time.monotonic() + 60
    while "step 5\n" not in run.log(1):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    listed = terminal("runs").stdout
    assert run.id in listed
    assert "running" in listed
    with subprocess.Popen(
        [*COMMAND, "logs", "-f", "--rank", "1", run.id], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        lines = [next(follower.stdout).strip() for _ in range(20)]
        assert lines == [f"step {n}" for n in range(20)]
        stopped = terminal("stop", run.id[:15])
        assert stopped.stdout.startswith(f"Run {run.id} of another kernel: stopped.")
        rest = follower.stdout.read()
    assert follower.returncode == 0
    assert "KeyboardInterrupt" in rest or rest.startswith("step 20")
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)
    assert "stopped" in terminal("show", run.id).stdout
    assert terminal("stop", run.id).stdout == f"Run {run.id} has already ended: stopped.\n"


WAIT = """
import os, time
print("begins", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
"""
KILLED = """
import signal
if not os.path.exists({mark!r}):
    if os.environ["RANK"] == "0":
        open({mark!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
DROPOUT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
"""
KERNEL = """
import json, sys, nbmgpu
cell, options = sys.argv[1:]
nbmgpu.run(cell, {"__name__": "__main__"}, gpus=2, cpu=True, **json.loads(options))
"""


@pytest.mark.parametrize("command", [["logs", "-f"], ["attach"]], ids=["logs", "attach"])
@pytest.mark.parametrize(
    ("cell", "options"),
    [(KILLED, {"max_restarts": 1}), (DROPOUT, {"exact": "auto"})],
    ids=["killed", "dropout"],
)
def test_the_run_that_replaces_one_is_followed(
    cell: str, options: dict[str, Any], command: list[str], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    cell = f"{WAIT}{cell}\nprint('ends', flush=True)".format(go=f"{go}", mark=f"{go}-mark")
    before = {run.id for run in list_runs()}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, cell, json.dumps(options)])
    deadline = time.monotonic() + 60
    while not (found := [run for run in list_runs() if run.id not in before]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (run,) = found
    with subprocess.Popen(
        [*COMMAND, *command, run.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert next(follower.stdout) == "begins\n"  # of the run that is replaced
        go.touch()
        printed, said = follower.communicate(timeout=100)
    assert kernel.wait(60) == 0
    (last, *_) = list_runs()
    assert last.id != run.id
    assert f"Run {run.id} was started again as run {last.id}." in said
    lines = printed.splitlines()
    assert lines.index("begins") < lines.index("ends")
    assert follower.returncode == 0


def test_errors_name_the_commands_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing"]) == 1
    assert capsys.readouterr().err.endswith("Try: nbmgpu runs\n")


def test_a_log_that_does_not_exist_yet_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with Stage() as stage:
        staged = stage()
        staged.start()
        staged.end("finished")
        assert main(["logs", staged.run.id, "--rank", "1"]) == 0
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", [["logs"], ["logs", "-f"], ["attach"]])
def test_a_rank_that_the_run_does_not_have(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with Stage() as stage:
        staged = stage()
        staged.start()
        staged.end("finished")
        assert main([*command, staged.run.id, "--rank", "7"]) == 1
    assert "has no rank 7.\nRanks: 0 to 1.\n" in capsys.readouterr().err


def test_a_report_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Stage() as stage:
        staged = stage()
        staged.start()
        staged.end("finished")
        path = tmp_path / "report.html"
        assert main(["export", "--report", staged.run.id, str(path)]) == 0
        assert main(["export", staged.run.id, str(path), "--report"]) == 0
        assert f"Run {staged.run.id}" in path.read_text()
        assert capsys.readouterr().out == f"Wrote {path}.\n" * 2


def test_info_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert "torch" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == nbmgpu.__version__
