"""Downsampled curves, curve details and throughput."""

import base64
import math
import random
import time

import numpy as np
import pytest

from nbmgpu.report.curves import (
    CURVES,
    CurveRequest,
    bin_means,
    curve_detail,
    curves,
    downsample,
    epoch_ends,
    straggler,
    throughput,
)


def decode(encoded):
    return np.frombuffer(base64.b64decode(encoded), "<f4").reshape(-1, 2)


class TestDownsample:
    def downsample(self, values, limit):
        return downsample(np.arange(len(values)), np.array(values), limit)

    def test_short_curves_are_unchanged(self):
        steps, values = self.downsample([3.0, 1.0, 2.0], 10)
        assert steps.tolist() == [0, 1, 2]
        assert values.tolist() == [3.0, 1.0, 2.0]

    @pytest.mark.parametrize("count", [11, 50, 1000, 1001, 99_999])
    @pytest.mark.parametrize("limit", [10, 60, 1000])
    def test_ends_spikes_and_order_are_kept(self, count, limit):
        values = [1.0] * count
        values[count // 3], values[2 * count // 3] = 9.0, -9.0
        steps, kept = self.downsample(values, limit)
        assert len(steps) <= max(limit, 10)
        assert (np.diff(steps) > 0).all()
        assert (steps[0], steps[-1]) == (0, count - 1)
        assert (kept.max(), kept.min()) == (9.0, -9.0)

    def test_nan_is_kept(self):
        values = [1.0] * 5000
        values[1234] = math.nan
        steps, kept = self.downsample(values, 100)
        assert steps[np.isnan(kept)].tolist() == [1234]

    def test_a_curve_of_nan(self):
        steps, kept = self.downsample([math.nan] * 5000, 100)
        assert 0 < len(steps) <= 100
        assert np.isnan(kept).all()


class TestBinMeans:
    def test_means_of_equal_bins(self):
        values = np.tile([0.0, 0.0, 0.0, 4.0], 250)  # the midrange is 2
        steps, means = bin_means(np.arange(1000), values, 50)
        assert len(steps) == 50
        assert means.tolist() == [1.0] * 50

    def test_nonfinite_values_are_ignored(self):
        values = np.array([1.0, math.nan, 3.0, math.nan, math.nan, math.inf])
        assert bin_means(np.arange(6), values, 2)[1].tolist() == [2.0]


class TestCurves:
    def test_the_loss_is_first_and_values_are_formatted(self, staged):
        run = staged(1)
        run.points("lr", [0], [1e-5])
        run.points("loss", [0, 1], [2.5, 0.123456])
        shown = curves(run.polled().view).shown
        assert [(c.name, c.last) for c in shown] == [("loss", "0.1235"), ("lr", "1e-5")]
        assert decode(shown[0].points).tolist() == [[0.0, 2.5], [1.0, pytest.approx(0.123456)]]

    def test_nonfinite_values_are_gaps(self, staged):
        run = staged(1)
        run.points("loss", [0, 1, 2], [1.0, math.inf, math.nan])
        (curve,) = curves(run.polled().view).shown
        assert curve.last == "nan"
        assert not curve.finite
        assert np.isinf(decode(curve.points)[1, 1])

    def test_a_curve_of_empty_slices_is_not_shown(self, staged):
        run = staged(1)
        run.points("loss", [0], [math.nan], weight=0.0)
        assert curves(run.polled().view).shown == []

    def test_the_total_number_of_points_is_limited(self, staged):
        run = staged(1)
        for index in range(CURVES + 5):
            run.points(f"metric {index}", list(range(2000)), [0.5] * 2000)
        found = curves(run.polled().view)
        assert len(found.shown) == CURVES
        assert found.hidden == 5
        assert sum(len(decode(curve.points)) for curve in found.shown) <= 8000

    def test_100_000_points_are_fast_and_downsampled(self, staged):
        run = staged(2)
        rng = random.Random(0)
        for rank in range(2):
            for start in range(0, 100_000, 500):
                steps = list(range(start, start + 500))
                run.points("loss", steps, [rng.random() for _ in steps], rank)
        run.points("loss", [100_000], [7.0])
        view = run.polled().view
        start_time = time.perf_counter()
        (curve,) = curves(view).shown
        assert time.perf_counter() - start_time < 0.5
        assert curve.last == "7"
        assert curve.steps == 100_001
        assert len(decode(curve.points)) <= 1000
        means = decode(curve.means)
        assert 0 < len(means) <= 1000 // 3
        assert abs(means[:-1, 1].mean() - 0.5) < 0.02


class TestCurveDetail:
    @pytest.fixture
    def view(self, staged):
        run = staged(1)
        run.points("loss", list(range(0, 50_000, 5)), [1.0] * 10_000)
        return run.polled().view

    def test_the_range_is_extended_by_one_point_at_each_end(self, view):
        line = curve_detail(view, CurveRequest("loss", 100.5, 120.5))
        assert decode(line.points)[:, 0].tolist() == [100, 105, 110, 115, 120, 125]
        assert line.means == ""

    def test_long_ranges_are_downsampled(self, view):
        line = curve_detail(view, CurveRequest("loss", 0, 40_000))
        assert len(decode(line.points)) <= 1000
        assert line.means

    @pytest.mark.parametrize(("first", "last"), [(-9, -5), (1e9, 2e9), (7, 3)])
    def test_a_range_outside_the_curve_has_the_nearest_point(self, view, first, last):
        assert 1 <= curve_detail(view, CurveRequest("loss", first, last)).steps <= 2

    def test_an_inverted_range_is_none(self, view):
        assert curve_detail(view, CurveRequest("loss", 40, 3)) is None

    def test_an_unknown_metric_is_none(self, view):
        assert curve_detail(view, CurveRequest("other", 0, 1)) is None


class TestThroughput:
    def heartbeats(self, run, own, step_time=0.01, count=5):
        for number in range(1, count + 1):
            for rank, seconds in enumerate(own):
                more = {"step_time": step_time, "own_time": seconds, "sent": [1024.0 * rank, 0.0]}
                run.heartbeat(rank, step=100 * number, **more)
        return throughput(run.polled())

    def test_without_heartbeats(self, staged):
        found = throughput(staged(2).polled())
        assert (found.rate, found.step_time, found.slowest, found.message) == ("", "", -1, "")
        assert found.sent == ""
        assert found.rates == found.step_times == []

    def test_rates_are_not_shown_as_curves(self, staged):
        run = staged(1)
        run.points("samples/s", [0], [1234.0])
        run.points("tokens/s", [0], [56_789.0])
        view = run.polled().view
        assert curves(view).shown == []
        assert throughput(run.run).rate == "1,234 samples/s, 56,789 tokens/s"

    def test_the_slowest_rank_is_named(self, staged):
        found = self.heartbeats(staged(3), own=[0.004, 0.008, 0.004])
        assert found.slowest == 1
        assert found.step_time == "10 ms"
        assert found.sent == "2.0 KiB", "of the rank that sends most"
        assert "Rank 1 is the slowest: the others wait for it 40 % of the time." in found.message
        assert [line.name for line in found.step_times] == ["step", "rank 0", "rank 1", "rank 2"]
        assert decode(found.step_times[2].points)[0].tolist() == [100, pytest.approx(0.008)]

    @pytest.mark.parametrize(
        "options", [{"strategy": "fsdp"}, {"strategy": "zero2"}, {"devices": ["cuda:0", "cuda:1"]}]
    )
    def test_waiting_is_reported_only_if_ranks_synchronize_in_the_backward_pass(
        self, staged, options
    ):
        found = self.heartbeats(staged(2, **options), own=[0.004, 0.008])
        assert found.slowest == 1
        assert found.message == (
            "Rank 1 spends the most time outside backward passes: 8 ms of a step, the others 4 ms."
        )

    @pytest.mark.parametrize("own", [[0.004, 0.004], [0.0040, 0.0045], [0.0001, 0.0004]])
    def test_small_differences_are_ignored(self, staged, own):
        assert self.heartbeats(staged(2), own).slowest == -1

    def test_a_single_heartbeat_is_ignored(self, staged):
        assert self.heartbeats(staged(2), own=[0.001, 0.009], count=1).slowest == -1

    def test_of_many_ranks_only_the_slowest_has_a_curve(self, staged):
        found = self.heartbeats(staged(12), own=[0.004] * 11 + [0.009])
        assert [line.name for line in found.step_times] == ["step", "rank 11"]

    def test_a_single_rank_is_not_a_straggler(self, staged):
        run = staged(1)
        found = self.heartbeats(run, own=[0.009])
        assert [line.name for line in found.step_times] == ["step"]
        assert straggler(run.run) is None


def test_epochs_end_between_known_steps(staged):
    played = staged(1)
    played.start()
    for step, batch in [(4, 4), (14, 4), (30, 10)]:
        position = {"samples": 8 * step, "train_step": step}
        played.progress(batch, 10, epoch=1 + (step - 1) // 10, **position)
    assert epoch_ends(played.polled().view) == [10.0, 20.0, 30.0]


def test_many_epochs_are_not_marked(staged):
    played = staged(1)
    played.start()
    played.progress(1, 1, epoch=51, samples=8, train_step=51)
    assert epoch_ends(played.polled().view) == []
