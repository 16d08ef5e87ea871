"""Runs from plain Python scripts, without IPython."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[1]

pytestmark = pytest.mark.alone

HEAD = """
import os, sys, time
import torch
import torch.distributed as dist
import nbmgpu

print("the script begins")
"""


class Script(subprocess.Popen[str]):
    """A running script with its own folders."""

    def __init__(self, folder: Path, source: str) -> None:
        path = folder / "script.py"
        path.write_text(HEAD + source)
        self.runs = folder / "runs"
        environment = os.environ | {
            "NBMGPU_RUNS": str(self.runs),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONUNBUFFERED": "1",
        }
        super().__init__(
            [sys.executable, str(path)], env=environment, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.shm = set(os.listdir("/dev/shm"))
        self.processes: list[psutil.Process] = []
        self.read = ""

    def until(self, line: str) -> None:
        """Read until ``line`` is printed, then record all child processes."""
        assert self.stdout is not None
        for text in self.stdout:
            self.read += text
            if line in text:
                break
        else:
            assert self.stderr is not None
            raise AssertionError(self.read + self.stderr.read())
        self.processes = psutil.Process(self.pid).children(recursive=True)

    def end(self, code: int = 0) -> tuple[str, str]:
        """Wait for the end; return stdout and stderr.  No process or shared memory may be left."""
        out, err = self.communicate(timeout=60)
        assert self.returncode == code, out + err
        _, alive = psutil.wait_procs(self.processes, timeout=5)
        assert alive == []
        assert set(os.listdir("/dev/shm")) <= self.shm
        return self.read + out, err


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    started: list[Script] = []

    def start(source: str) -> Script:
        started.append(Script(tmp_path, source))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_functions_and_source_have_their_effects_in_the_script(
    script: Callable[[str], Script],
) -> None:
    out, _ = script("""
def train(model, rate, seen):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model(torch.ones(2, 1)).sum().backward()
    optimizer.step()
    seen.append(dist.get_rank())
    print("trained")
    return dist.get_rank() * 10

if __name__ == "__main__":
    model, seen = torch.nn.Linear(1, 1), []
    bias = model.bias.item()
    result = nbmgpu.launch(train, model, 0.5, seen, gpus=2, strategy="none")
    print(result.value, result.per_rank, result.run.state, seen)
    print("changed by", round(bias - model.bias.item(), 3))
    args = "of the script"
    named = nbmgpu.launch(lambda: args, gpus=2)
    print(result.run.cell, "/", named.run.cell, named.value)

    x, _hidden, values = 5, 1, []
    run = nbmgpu.run("x = x + 1; _hidden = 2; values.append(x)\\nx", gpus=2)
    print(x, _hidden, values, run.state, run.results[1]["x"])
    inner = {"y": 1}
    nbmgpu.run("y += 1", inner, gpus=2)
    print(inner["y"], "y" in globals())

    run = nbmgpu.run("x = 1\\nprint('from the rank')", gpus=2, background=True)
    print("meanwhile", x)
    print(nbmgpu.attach(run.id).state, x)
""").end()
    for lines in (
        "0 [0, 10] finished [0]\nchanged by 1.0\n",
        "train(*args) / function(*_nbmgpu_args) of the script\n",
        "6 2 [6] finished 6\n",
        "2 False\n",
        "meanwhile 6\n",
        "finished 1\n",
    ):
        assert lines in out
    for line in ("the script begins", "trained", "from the rank"):
        assert out.count(line) == 1


def test_the_ranks_exception_is_raised_with_its_traceback_as_cause(
    script: Callable[[str], Script],
) -> None:
    out, err = script("""
class Boom(Exception):
    pass

def fail():
    raise Boom("here")

try:
    nbmgpu.run("int('a')", gpus=2)
except ValueError as error:
    print("caught", error)
nbmgpu.launch(fail, gpus=2)
""").end(1)
    assert "caught invalid literal" in out
    assert "Rank 0 of 2 raised Boom" in err
    assert 'raise Boom("here")' in err
    assert "\x1b" not in err
    assert err.splitlines()[-1].endswith("Boom: here")


def test_ctrl_c_stops_the_run_and_not_the_script(script: Callable[[str], Script]) -> None:
    process = script("""
n = 0
try:
    nbmgpu.run("n = 3\\nprint('ready')\\nimport time; time.sleep(100)", gpus=2)
except KeyboardInterrupt as error:
    print(type(error).__name__, n)
print(nbmgpu.run("n + 1\\nn", gpus=2).results[0])
""")
    process.until("ready")
    at = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.until("KeyboardInterrupt 3")
    assert time.monotonic() - at < 3
    process.end()


def test_a_launcher_that_starts_after_its_run_is_over_starts_no_ranks(
    script: Callable[[str], Script],
) -> None:
    process = script("""
import signal
from dataclasses import replace
from nbmgpu.engines.local.client import fork_server_client

x = torch.ones(1000)
nbmgpu.run("x = x + 1", gpus=2)
fork_server_client()._process.send_signal(signal.SIGSTOP)
late = nbmgpu.run("x.fill_(9); print('ran')", gpus=2, background=True)
late.record = replace(late.record, created=late.record.created - 200)  # the machine has slept
try:
    nbmgpu.attach(late.id)
except nbmgpu.NbmgpuError as error:
    print(error)
later = nbmgpu.run("x = x + 1; time.sleep(1)", gpus=2, background=True)
fork_server_client()._process.send_signal(signal.SIGCONT)
print(nbmgpu.attach(later.id).state, x.mean().item())
late = nbmgpu.find_run(late.id)
print(late.state, [rank.process for rank in late.view.ranks], late.log(0))
""")
    out, _ = process.end()
    assert "ended without a report (lost)" in out
    assert "finished 3.0\nstopped [None, None] \n" in out


def test_ranks_of_an_abandoned_run_are_killed(script: Callable[[str], Script]) -> None:
    process = script("""
from nbmgpu.runs.folder import COLLECTED_FILE

run = nbmgpu.run("print('ready')\\nimport time; time.sleep(100)", gpus=2, background=True)
while "ready" not in run.log(0) + run.log(1):
    time.sleep(0.01)
(run.folder / COLLECTED_FILE).touch()
print(run.wait(10))
""")
    out, _ = process.end()
    assert "stopped\n" in out


def test_the_ranks_of_a_killed_script_are_killed(script: Callable[[str], Script]) -> None:
    process = script("nbmgpu.run(\"print('ready')\\nimport time; time.sleep(100)\", gpus=2)")
    process.until("ready")
    process.kill()
    process.end(-signal.SIGKILL)


def test_a_script_without_runs_exits_immediately(script: Callable[[str], Script]) -> None:
    process = script(
        "from nbmgpu.engines.local import client; client.fork_server_client(); print('ready')"
    )
    process.until("ready")
    at = time.monotonic()
    process.end()
    assert time.monotonic() - at < 3
