"""``python -m nbmgpu.check``: its checks can fail, and none stops the others."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from runs_folder import runs_folder  # noqa: F401

import nbmgpu
from nbmgpu.check import failures, speed
from nbmgpu.check.cells import CELLS
from nbmgpu.check.check import Check, CheckResult, CheckSkipped, Finding
from nbmgpu.check.comparison import compare
from nbmgpu.check.groups import all_checks
from nbmgpu.check.numbers import checks as number_checks
from nbmgpu.check.report import Report, summary_line
from nbmgpu.check.runner import _lost, run_all
from nbmgpu.check.session import end_session
from nbmgpu.check.setting import Setting
from nbmgpu.check.step_ratio import in_turns
from nbmgpu.check.timed_loops import by_hand, ours
from nbmgpu.devices.nvidia import Gpu
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import StrategyError
from nbmgpu.strategies import strategy_names
from nbmgpu.system.processes import creation_time, process_is_alive

CPU = Setting(0)


def test_a_cell_with_the_numbers_of_one_device_passes() -> None:
    finding = compare(CELLS[0], CPU)
    assert 0 < float(finding.values["of_tolerance"]) < 0.5


def test_a_cell_with_other_numbers_fails() -> None:
    source = "import os\nopt.param_groups[0]['lr'] *= int(os.environ.get('WORLD_SIZE', 1))\n"
    cell = dataclasses.replace(CELLS[0], source=source + CELLS[0].source)
    with pytest.raises(AssertionError, match=r"model\[\d\] differs by .* times the tolerance"):
        compare(cell, CPU)


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (ValueError("seven"), "failed", "ValueError: seven"),
        (AssertionError("differs"), "failed", "differs"),
        (StrategyError("no"), "refused", "no"),
        (CheckSkipped("needs a GPU"), "skipped", "needs a GPU"),
    ],
)
def test_what_a_check_raises_is_its_result(raised: Exception, status: str, text: str) -> None:
    def function(setting: Setting) -> Finding:
        raise raised

    result = Check("group", "name", function).run(CPU)
    assert (result.status, result.text) == (status, text)
    assert CheckResult.from_json(result.to_json()) == result


def test_all_strategies_are_checked_under_unique_names() -> None:
    labels = [check.label for check in all_checks()]
    assert len(set(labels)) == len(labels)
    names = [check.name for check in number_checks()]
    assert all(any(name.startswith(f"{s}, ") for name in names) for s in strategy_names())


def test_a_run_that_leaves_a_process_is_found() -> None:
    process = subprocess.Popen(["sleep", "60"])
    run = nbmgpu.run("1", {}, gpus=1, cpu=True)
    assert run is not None
    started = run.view.ranks[0].process
    assert started is not None
    run.view.ranks[0].process = dataclasses.replace(
        started, pid=process.pid, create_time=creation_time(process.pid)
    )
    try:
        with pytest.raises(AssertionError, match=f"processes of the run are left: .{process.pid}"):
            failures._nothing_left(run, CPU, 0)
    finally:
        process.kill()
        process.wait()


def test_settings_of_machines() -> None:
    gpus = tuple(Gpu(i, "NVIDIA T4", 16 << 30, 15 << 30) for i in range(2))
    two = Machine(8, 64 << 30, gpus, cuda=True)
    assert Setting.of(two).options(2) == {"gpus": 2}
    assert Setting.of(two, cpu=True).options(4) == {"gpus": 4, "cpu": True}
    one = Setting.of(dataclasses.replace(two, gpus=gpus[:1]))
    assert one.options(2) == {"gpus": (0, 0)}
    assert one.options(1) == {"gpus": 1}
    assert "not NCCL between GPUs" in one.proves


def test_the_report_counts_and_lists_failures() -> None:
    report = Report.of(CPU, probe())
    report.results += [
        CheckResult("numbers", "an MLP", "passed", "", 1.0),
        CheckResult("numbers", "an LSTM", "failed", "model[1] differs\nby 7", 2.5, {"a": 1}),
    ]
    table = report.table()
    assert [line.split() for line in table.splitlines()[1:2]] == [
        ["numbers", "1", "1", "0", "0", "4"]
    ]
    assert summary_line(report.results[1]) in table
    assert "model[1] differs by 7" in table
    assert json.loads(report.to_json())["results"][1]["values"] == {"a": 1}


def steps(*milliseconds: float) -> Callable[[], dict[str, float]]:
    """Return what measures these steps, one after the other."""
    times = iter(milliseconds)
    return lambda: {"step": next(times) / 1e3, "cpu": 0.001, "peak": 0.0}


def test_ratios_are_those_of_rounds_and_a_disturbed_one_does_not_count() -> None:
    order: list[str] = []
    measures = {"ours": steps(10.1, 20.2, 90, 10.1, 10.1), "other": steps(10, 20, 10, 10, 10)}

    def measure(name: str) -> dict[str, float]:
        order.append(name)
        return measures[name]()

    found = in_turns(lambda: measure("ours"), lambda: measure("other"))
    assert order[:4] == ["ours", "other", "other", "ours"]
    assert found.median == pytest.approx(1.01)
    assert found.finding("by hand", Setting(2), 2).warning == ""


@pytest.mark.parametrize(
    ("setting", "ranks", "warning"),
    [
        (Setting(2), 2, "above the limit of 1.02"),
        (Setting(1), 1, "above the limit of 1.02"),
        (Setting(1), 2, ""),
        (CPU, 1, ""),
    ],
)
def test_a_slow_step_is_a_warning_on_gpus(setting: Setting, ranks: int, warning: str) -> None:
    found = in_turns(steps(11, 11, 11), steps(10, 10, 10), 3).finding("by hand", setting, ranks)
    assert found.warning == warning
    assert ("the limit of 1.02 is for a GPU per rank" in found.text) == (not warning)
    result = Check("speed", "a step", lambda setting: found).run(setting)
    report = Report.of(setting, probe())
    report.results.append(CheckResult.from_json(result.to_json()))
    assert report.count("failed") == 0
    assert ("above the limit of 1.02: 1.100 x by hand: 11.00 ms" in report.table()) == bool(warning)
    assert json.loads(report.to_json())["results"][0]["warning"] == warning


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.matrix("nbmgpu/check")
def test_steps_beside_ddp_by_hand_are_profiled_and_scale() -> None:
    assert ours(CPU, 2, profile=speed.STEPS)["communication"] > 0
    by_ddp = by_hand(CPU, 2, profile=True)
    assert by_ddp["hidden"] > 0
    assert by_ddp["communication"] > 0
    (scaling,) = (check.run(CPU) for check in speed.checks() if "more and more" in check.name)
    assert scaling.status == "passed", scaling.text
    assert {"ours, 1", "other, 1", "ours, 2", "other, 2"} == set(scaling.values)
    assert scaling.values["ours, 1"] == scaling.values["other, 1"] == 1


def test_the_command_runs_what_is_chosen(tmp_path) -> None:
    report = tmp_path / "report.json"
    only = ["--only", "a sum over all ranks", "--only", "links", "--only", "a time limit"]
    line = command("--json", str(report), *only)
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {r["name"]: r["status"] for r in json.loads(report.read_text())["results"]}
    assert found == {
        "links between GPUs": "skipped",
        "a sum over all ranks": "passed",
        "a time limit": "passed",
    }
    assert "nothing here says how a GPU behaves" in done.stdout


def test_a_check_that_ends_its_process_does_not_stop_the_others(monkeypatch, tmp_path) -> None:
    """The process of the checks is replaced by one that ends in the second of three."""
    lines = [CheckResult("g", name, "passed", "", 0.0).to_json() for name in ("a", "c")]
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        f"case \"$*\" in *'g: a'*) echo '{lines[0]}' >>\"$4\"; echo broken >&2; exit 7;; "
        f"*'g: c'*) echo '{lines[1]}' >>\"$4\";; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    checks = [Check("g", name, lambda setting: Finding()) for name in ("a", "b", "c")]
    results = {result.name: result for result in run_all(checks, cpu=True)}
    assert [result.status for result in results.values()] == ["passed", "failed", "passed"]
    assert results["b"].text == "ended its process with exit code 7: broken"


def test_a_lost_check_says_how_also_where_nothing_was_printed() -> None:
    process = subprocess.Popen(["sleep", "60"])
    check = Check("g", "a", lambda setting: Finding())
    try:
        hanging = _lost(check, process, 900.0, "").text
        assert hanging == "hangs: no result after 900 s: it printed nothing"
    finally:
        process.kill()
        process.wait()
    assert _lost(check, process, 1.0, "").text == (
        "its process was ended by SIGKILL: it printed nothing"
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nbmgpu.check", "--cpu", *arguments]


def refusal(*arguments: str) -> str:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_a_text_that_no_check_has_is_refused() -> None:
    message = refusal("--only", "failures", "--only", "nothere")
    assert "no check's name contains 'nothere'. Groups: machine, failures, numbers" in message


def test_a_report_that_cannot_be_written_is_refused_before_the_first_check(tmp_path) -> None:
    path = tmp_path / "missing" / "report.json"
    message = refusal("--json", str(path))
    assert f"the report cannot be written to {path}: No such file or directory." in message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_check_tells_what_has_run_and_leaves_no_files(tmp_path, number) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    chosen = ("--only", "links", "--only", "a stop", "--only", "a time limit")

    def as_in_a_terminal():  # shells start what is in the background with SIGINT ignored
        signal.signal(number, signal.SIG_DFL)

    options = {"text": True, "preexec_fn": as_in_a_terminal, "cwd": tmp_path}
    process = subprocess.Popen(
        command(*chosen), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)}, **options,
    )  # fmt: skip
    assert process.stdout is not None
    while "skipped  machine: links" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(1)
    assert len(list(temporary.iterdir())) == 1
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + number, "")
    assert "passed  failed  refused  skipped  seconds\nmachine " in output
    assert [r["name"] for r in json.loads((tmp_path / "nbmgpu-check.json").read_text())["results"]]
    assert list(temporary.iterdir()) == []


def test_a_session_ends_with_all_its_processes() -> None:
    script = "sleep 60 & echo $! && wait"
    process = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    created = creation_time(child)
    end_session(process)
    process.stdout.close()
    until = time.monotonic() + 5
    while process_is_alive(child, created) and time.monotonic() < until:
        time.sleep(0.05)
    assert not process_is_alive(child, created)
