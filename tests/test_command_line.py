"""The command ``nbmgpu`` of a terminal, with a run in another process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs_folder import runs_folder  # noqa: F401
from staged import Stage

import nbmgpu
from nbmgpu.frontend.command_line import main

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


def test_errors_name_the_commands_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing"]) == 1
    assert capsys.readouterr().err.endswith("Try: nbmgpu runs\n")


def test_a_log_that_does_not_exist_yet_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with Stage() as stage:
        staged = stage()
        staged.start()
        staged.end("finished")
        assert main(["logs", staged.run.id, "--rank", "7"]) == 0
    assert capsys.readouterr().out == ""


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
