"""The row of each rank and its warnings."""

import math
import time

import pytest

from nbmgpu.report.rank_rows import SILENT, rows
from nbmgpu.runs.events import Heartbeat


def current_rows(run):
    return rows(run.polled(), time.time())


def heartbeat_ago(run, rank, ago, step=10, **fields):
    defaults = {"step_time": 0.5, "own_time": 0.1, "cpu": 1.0, "cores": 1, "memory": 1}
    at = {"time": time.time() - ago, "rank": rank, "step": step}
    run.write(rank, Heartbeat(memory_total=1, **at, **defaults | fields))


def test_state_step_and_usage(staged):
    run = staged(1, devices=["cuda:3"])
    run.start()
    run.heartbeat(
        0, step=1234, step_time=0.0123, cpu=150.0, cores=4, memory=1 << 30, memory_total=4 << 30,
        gpu=87.0, gpu_memory=30 << 30, gpu_memory_total=40 << 30,
    )  # fmt: skip
    (row,) = current_rows(run)
    assert (row.device, row.label, row.tone, row.step) == ("cuda:3", "running", "busy", 1234)
    assert row.step_time == "12 ms"
    assert (row.cpu.text, row.cpu.fraction) == ("150 %", 0.375)
    assert (row.memory.text, row.memory.fraction) == ("1.0 GiB", 0.25)
    assert (row.gpu.text, row.gpu.fraction) == ("87 %", 0.87)
    assert (row.gpu_memory.text, row.gpu_memory.fraction) == ("30.0 GiB", 0.75)
    assert row.warning == ""


def test_allocated_memory_is_shown_without_driver_data(staged):
    run = staged(1, devices=["cuda:0"])
    run.heartbeat(0, gpu_memory=3 << 30)
    (row,) = current_rows(run)
    assert row.gpu.text == ""
    assert (row.gpu_memory.text, row.gpu_memory.fraction) == ("3.0 GiB", -1)


def test_before_the_first_heartbeat(staged):
    row = current_rows(staged(2))[1]
    assert (row.label, row.tone, row.step, row.step_time) == ("starting", "idle", 0, "")
    assert row.cpu.text == row.memory.text == ""
    assert row.gpu is row.gpu_memory is None


def test_failed_and_ended_ranks(staged):
    run = staged(2)
    run.start()
    run.fail(1)
    run.exit(1, 1)
    run.exit(0, -15)
    shown = current_rows(run)
    assert [row.label for row in shown] == ["ended (SIGTERM)", "failed (exit 1)"]
    assert [row.tone for row in shown] == ["calm", "bad"]


def test_ranks_of_a_stopping_run_have_not_failed(staged):
    run = staged(1)
    run.start()
    run.exit(0, -2)
    (row,) = rows(run.polled(), time.time(), stopping=True)
    assert (row.label, row.tone) == ("ended (SIGINT)", "calm")


class TestWarnings:
    def test_a_silent_rank(self, staged):
        run = staged(2)
        heartbeat_ago(run, 0, ago=0)
        heartbeat_ago(run, 1, ago=SILENT + 7)
        warnings = [row.warning for row in current_rows(run)]
        assert warnings[0] == ""
        assert warnings[1].startswith("silent for 12 s while others continue")

    def test_no_warning_if_all_ranks_are_silent(self, staged):
        run = staged(2)
        for rank in range(2):
            heartbeat_ago(run, rank, ago=60)
        assert [row.warning for row in current_rows(run)] == ["", ""]

    def test_no_warning_after_the_end(self, staged):
        run = staged(2)
        heartbeat_ago(run, 1, ago=60)
        heartbeat_ago(run, 0, ago=0)
        run.finish()
        assert [row.warning for row in current_rows(run)] == ["", ""]

    @pytest.mark.parametrize(("behind", "warning"), [(40, "40 steps behind rank 0"), (5, "")])
    def test_a_rank_that_is_steps_behind(self, staged, behind, warning):
        run = staged(2)
        heartbeat_ago(run, 0, ago=0, step=100)  # 0.5 s per step: 5 steps are 2.5 s
        heartbeat_ago(run, 1, ago=0, step=100 - behind)
        assert [row.warning for row in current_rows(run)] == ["", warning]

    def test_a_rank_that_the_others_wait_for(self, staged):
        run = staged(2)
        for _ in range(3):
            run.heartbeat(0, step=10, step_time=0.01, own_time=0.002)
            run.heartbeat(1, step=10, step_time=0.01, own_time=0.008)
        shown = current_rows(run)
        assert [row.slowest for row in shown] == [False, True]
        assert shown[1].warning == "slow: the others wait for it 60 % of the time"

    def test_a_slow_rank_of_a_sharded_strategy(self, staged):
        run = staged(2, strategy="fsdp")
        for _ in range(3):
            run.heartbeat(0, step=10, step_time=0.01, own_time=0.002)
            run.heartbeat(1, step=10, step_time=0.01, own_time=0.008)
        assert current_rows(run)[1].warning == "spends the most time outside backward passes"

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_nonfinite_loss(self, staged, value):
        run = staged(2)
        run.points("my_loss", [1, 2], [1.0, 0.9], rank=0)
        run.points("my_loss", [1, 2], [1.0, value], rank=1)
        assert [row.warning for row in current_rows(run)] == ["", f"its my_loss is {value}"]

    def test_a_loss_far_from_the_others(self, staged):
        run = staged(3)
        for rank, value in enumerate([0.5, 0.6, 80.0]):
            run.points("loss", [1, 2, 3], [value] * 3, rank)
        warnings = [row.warning for row in current_rows(run)]
        assert warnings == ["", "", "its loss is 80, the other ranks' is about 0.55"]

    def test_normal_differences_of_losses_are_ignored(self, staged):
        run = staged(2)
        for rank, value in enumerate([0.5, 1.5]):
            run.points("loss", [1, 2, 3], [value] * 3, rank)
        assert [row.warning for row in current_rows(run)] == ["", ""]

    def test_other_metrics_may_differ(self, staged):
        run = staged(2)
        for rank, value in enumerate([0.001, 50.0]):
            run.points("samples", [1, 2, 3], [value] * 3, rank)
        assert [row.warning for row in current_rows(run)] == ["", ""]
