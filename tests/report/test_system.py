"""Charts of what ranks use of the machine, and the bounded history behind them."""

from __future__ import annotations

import numpy as np
import pytest
from staged import Stage

from nbmgpu.report.curves import decode_points
from nbmgpu.report.system import MAX_LINES, POINTS, SystemChart, system_charts
from nbmgpu.runs.events import Heartbeat
from nbmgpu.runs.usage import MAX_SAMPLES, UsageHistory


def beat(time: float, **fields: float) -> Heartbeat:
    known = {
        "step": 1, "step_time": 0.5, "own_time": 0.1, "cpu": 50.0, "cores": 2, "memory": 100,
        "memory_total": 1000,
    }  # fmt: skip
    return Heartbeat(time=time, rank=0, **(known | fields))  # type: ignore[arg-type]


def by_quantity(charts: list[SystemChart]) -> dict[str, SystemChart]:
    return {chart.quantity: chart for chart in charts}


class TestHistory:
    @pytest.mark.parametrize("count", [1, 255, 256, 257, 5000])
    def test_it_is_bounded_and_keeps_the_mean(self, count: int) -> None:
        history = UsageHistory()
        for second in range(count):
            history.add(beat(second, cpu=float(second)))
        assert len(history.samples) < MAX_SAMPLES
        times, cpu, *_ = np.array(history.samples).T
        assert (np.diff(times) > 0).all()
        covered = int(times[-1]) + 1  # a sample is added once all of its heartbeats have come
        assert count - covered < count / 100 + 1
        assert cpu.mean() == pytest.approx((covered - 1) / 2)

    def test_what_is_unknown_stays_unknown(self) -> None:
        history = UsageHistory()
        for second in range(600):
            history.add(beat(second, gpu=80.0 if second > 300 else -1.0))
        assert {usage.gpu for usage in history.samples} == {-1.0, 80.0}
        assert {usage.gpu_memory for usage in history.samples} == {-1.0}

    def test_what_is_sent_is_a_rate(self) -> None:
        history = UsageHistory()
        history.add(beat(0, sent=[1000.0, 1.0]))
        history.add(beat(1, sent=[1000.0, 1.0], step_time=0.0))  # no step since the last heartbeat
        assert [usage.sent for usage in history.samples] == [2000.0, 0.0]


def test_each_rank_of_few_has_a_line(staged: Stage) -> None:
    played = staged(2)
    start = played.run.record.created
    for second in range(1, 4):
        for rank in range(2):
            memory = (1 + rank) << 20
            played.vitals_at(
                start + second, rank, cpu=10.0 * second, memory=memory, sent=[0.0, 0.0]
            )
    played.run.refresh()
    charts = by_quantity(system_charts(played.run))
    assert charts.keys() == {"cpu", "memory"}  # nothing is known of a GPU, and nothing is sent
    first, second_ = charts["memory"].lines
    assert (first.name, first.last, second_.last) == ("rank 0", "1.0 MiB", "2.0 MiB")
    times, values = decode_points(charts["cpu"].lines[1].points)
    assert times.tolist() == pytest.approx([1, 2, 3], abs=1e-3)
    assert values.tolist() == [10, 20, 30]


def test_many_ranks_have_three_lines(staged: Stage) -> None:
    ranks = MAX_LINES + 2
    played = staged(ranks)
    start = played.run.record.created
    for second in range(300):
        for rank in range(ranks):
            played.vitals_at(start + second, rank, gpu=float(rank * 10), gpu_memory=1 << 30)
    played.run.refresh()
    lines = by_quantity(system_charts(played.run))["gpu"].lines
    assert [(line.name, line.last) for line in lines] == [
        ("lowest", "0 %"), ("mean", "25 %"), ("highest", "50 %")
    ]  # fmt: skip
    assert all(line.steps <= POINTS for line in lines)


def test_a_run_without_heartbeats_has_no_charts(staged: Stage) -> None:
    assert system_charts(staged(2).run) == []
