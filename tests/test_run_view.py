"""The state of a run computed from its events: curves, ranks and causes."""

import math
import time

import pytest

from nbmgpu.runs.curve import Curve
from nbmgpu.runs.events import (
    LAUNCHER,
    Ended,
    Exited,
    Failure,
    Heartbeat,
    Metrics,
    Notice,
    Progress,
    Started,
    Status,
    Stderr,
)
from nbmgpu.runs.view import RunView


def metrics(steps, values, weights=None, rank=0):
    weights = [1.0] * len(steps) if weights is None else weights
    return Metrics(0.0, rank, "loss", steps, values, weights)


def failure(rank, time, message="bad"):
    return Failure(time, rank, "ValueError", message, 1, [])


class TestCurve:
    def test_ranks_are_averaged_weighted_by_samples(self):
        curve = Curve()
        curve.add(metrics([0], [1.0], [3.0]))
        curve.add(metrics([0], [5.0], [1.0], rank=1))
        assert curve.points() == [(0, 2.0)]
        assert curve.last == 2.0

    def test_values_with_zero_weight_are_ignored(self):
        curve = Curve()
        curve.add(metrics([0, 1], [1.0, 2.0]))
        curve.add(metrics([0, 1], [math.nan, math.nan], [0.0, 0.0], rank=1))
        assert curve.points() == [(0, 1.0), (1, 2.0)]

    def test_points_are_sorted_by_step(self):
        curve = Curve()
        curve.add(metrics([5, 6], [5.0, 6.0]))
        curve.add(metrics([1, 2], [1.0, 2.0], rank=1))
        assert curve.points() == [(1, 1.0), (2, 2.0), (5, 5.0), (6, 6.0)]
        assert curve.last == 6.0

    def test_nan_and_inf_are_kept(self):
        curve = Curve()
        curve.add(metrics([0, 1, 2], [math.inf, -math.inf, math.nan]))
        curve.add(metrics([0, 1, 2], [1.0, math.inf, 1.0], rank=1))
        _, values = curve.arrays()
        assert values[0] == math.inf
        assert math.isnan(values[1])
        assert math.isnan(values[2])

    def test_an_empty_curve(self):
        curve = Curve()
        assert curve.points() == []
        assert curve.last is None
        assert len(curve) == 0
        assert curve.series().empty

    def test_series_is_float_and_indexed_by_step(self):
        curve = Curve()
        curve.add(metrics([0, 2], [1, 0]))
        series = curve.series()
        assert series.dtype == "float64"
        assert series.to_dict() == {0: 1.0, 2: 0.0}

    def test_100_000_points_are_fast(self):
        curve = Curve()
        for start in range(0, 100_000, 100):
            steps = list(range(start, start + 100))
            for rank in range(2):
                curve.add(metrics(steps, [1.0] * 100, rank=rank))
        begun = time.perf_counter()
        steps, values = curve.arrays()
        assert time.perf_counter() - begun < 0.5
        assert len(steps) == len(values) == 100_000


class TestState:
    def test_an_empty_run_is_starting(self):
        view = RunView(2)
        assert view.state == "starting"
        assert view.ending is None
        assert view.failure is None
        assert view.failed_rank is None

    def test_a_run_is_running_once_a_rank_is_running(self):
        view = RunView(2)
        view.add(Status(1.0, 0, "loading"))
        assert view.state == "starting"
        view.add(Status(2.0, 1, "running"))
        assert view.state == "running"
        assert (view.first_time, view.last_time) == (1.0, 2.0)

    @pytest.mark.parametrize("ending", ["finished", "failed", "stopped", "timeout"])
    def test_the_final_state_is_that_of_the_ended_event(self, ending):
        view = RunView(1)
        view.add(Ended(1.0, LAUNCHER, ending))
        assert view.state == view.ending == ending


class TestProcesses:
    def test_processes_of_launcher_and_ranks(self):
        view = RunView(2)
        view.add(Started(1.0, LAUNCHER, 10, 1.0))
        view.add(Started(1.0, 1, 11, 1.0, "cuda:1"))
        assert view.launcher.pid == 10
        assert view.ranks[0].process is None
        assert view.ranks[1].process.pid == 11

    def test_events_of_the_launcher_do_not_affect_ranks(self):
        view = RunView(2)
        view.add(Status(1.0, LAUNCHER, "failed"))
        view.add(failure(LAUNCHER, 1.0))
        assert [rank.state for rank in view.ranks] == ["starting", "starting"]
        assert view.failure is None

    def test_exit_codes(self):
        view = RunView(2)
        view.add(Exited(1.0, LAUNCHER, of_rank=1, code=-9))
        assert [rank.exit_code for rank in view.ranks] == [None, -9]


class TestFailedRank:
    def test_the_earliest_exception_is_the_cause(self):
        view = RunView(3)
        view.add(failure(2, 5.0, "closed by peer"))
        view.add(failure(1, 4.0, "cause"))
        assert view.failure.message == "cause"
        assert view.failed_rank == 1

    def test_without_exceptions_the_first_nonzero_exit_is_the_cause(self):
        view = RunView(3)
        view.add(Status(0.5, 0, "finished"))
        view.add(Exited(1.0, LAUNCHER, of_rank=0, code=0))
        view.add(Exited(3.0, LAUNCHER, of_rank=1, code=-15))
        view.add(Exited(2.0, LAUNCHER, of_rank=2, code=-9))
        assert view.failed_rank == 2

    def test_a_stopped_run_has_no_failed_rank(self):
        view = RunView(2)
        view.add(Exited(1.0, LAUNCHER, of_rank=0, code=-2))
        view.add(Ended(2.0, LAUNCHER, "stopped"))
        assert view.failed_rank is None


class TestNoticesAndProgress:
    def test_each_topic_is_kept_once(self):
        view = RunView(2)
        view.add(Notice(1.0, 1, "dropout", "first"))
        view.add(Notice(2.0, 0, "dropout", "second"))
        view.add(Notice(3.0, 0, "batch-norm", "third"))
        assert [n.text for n in view.notices.values()] == ["first", "third"]

    def test_only_bars_of_rank_0_are_kept(self):
        view = RunView(2)
        view.add(Progress(1.0, 0, "loader", "train", 3, 10))
        view.add(Progress(2.0, 1, "loader", "train", 9, 10))
        view.add(Progress(2.0, 1, "other", "mine", 1, 2))
        assert view.progress["loader"].step == 3
        assert "other" not in view.progress

    def test_a_restarted_bar_is_tracked_from_its_restart(self):
        view = RunView(1)
        for time_, step, epoch in [(1.0, 1, 1), (2.0, 9, 1), (3.0, 1, 2), (4.0, 5, 2)]:
            view.add(Progress(time_, 0, "loader", "train", step, 10, epoch))
        track = view.tracks["loader"]
        assert (track.first.time, track.begun.time, track.now.time) == (1.0, 3.0, 4.0)


def heartbeat(time, rank, step, step_time=0.5, logged=0, sent=(0.0, 0.0)):
    more = {"logged": logged, "sent": [*sent]}
    return Heartbeat(time, rank, step, step_time, step_time / 2, 90.0, 2, 1, 2, **more)


class TestRanks:
    def test_the_newest_heartbeat_is_kept(self):
        view = RunView(2)
        view.add(heartbeat(1.0, 1, 10))
        view.add(heartbeat(2.0, 1, 12, sent=(64.0, 2.0)))
        view.add(heartbeat(3.0, 1, 12, step_time=0.0))  # no new step
        seen = view.ranks[1]
        assert (seen.step, seen.last_time, seen.heartbeat.time) == (12, 3.0, 3.0)
        assert seen.step_times == [(10, 0.5, 0.25, 0, 0, 1, -1), (12, 0.5, 0.25, 64, 2, 1, -1)]
        assert view.ranks[0].heartbeat is None

    def test_each_rank_has_its_recent_values(self):
        view = RunView(2)
        view.add(metrics([1, 2, 3], [1.0, 2.0, 9.0], [1.0, 1.0, 0.0]))
        view.add(metrics([1, 2], [5.0, math.nan], rank=1))
        assert (view.ranks[0].recent["loss"].last, view.ranks[0].recent["loss"].mean) == (2.0, 1.5)
        assert math.isnan(view.ranks[1].recent["loss"].last)
        assert [rank.step for rank in view.ranks] == [3, 2]

    def test_stderr_ranges_and_log_sizes_over_time(self):
        view = RunView(1)
        view.add(Stderr(1.0, 0, 10, 20))
        view.add(heartbeat(2.0, 0, 1, logged=20))
        view.add(heartbeat(3.0, 0, 1, logged=35))
        seen = view.ranks[0]
        assert [n for n in (9, 10, 19, 20) if n in seen.log.stderr] == [10, 19]
        assert (seen.log.offsets, seen.log.times) == ([20, 35], [1.0, 3.0])
