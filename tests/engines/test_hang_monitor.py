"""When ranks count as hanging, from the events of staged runs; and what is said of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from staged import Stage, StagedRun

from nbmgpu.engines.hang import monitor
from nbmgpu.engines.hang.diagnosis import CellSource, RankEvidence, diagnose, format_stack, place
from nbmgpu.engines.hang.monitor import HangMonitor
from nbmgpu.engines.rank_processes import RankProcesses
from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import Hang, Heartbeat, Status
from nbmgpu.runs.stacks import STACK_SIGNAL, Collective, StackFrame

CELL = "for x, y in loader:\n    dist.barrier()\n    time.sleep(100)\n"
TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
CELL_FRAMES = [StackFrame("<nbmgpu-cell-7>", 2, "<module>"), StackFrame(TORCH, 5, "barrier")]


class SignalledRanks(RankProcesses):
    """Ranks that only remember their signals: staged runs have no processes."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def alive(self) -> bool:
        return True

    def poll(self) -> list[tuple[int, int]]:
        return []

    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        self.signals.append(sig)


class Clock:
    """The time of the monitor."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Watched:
    """A staged run of two ranks and its monitor, at a time that the test sets."""

    def __init__(self, staged: StagedRun, clock: Clock) -> None:
        self.staged, self.clock, self.ranks = staged, clock, SignalledRanks()
        staged.start()
        self.monitor = HangMonitor(staged.run, self.ranks, staged.launcher)
        self.step = 0
        self.tail = EventTail(staged.events / "launcher.jsonl")

    def wait(self, seconds: int, steps: int = 0, cpu: float = 0.0, beats: bool = True) -> None:
        """Let ranks send heartbeats for ``seconds``, with ``steps`` steps of a second each."""
        for _ in range(seconds):
            self.clock.now += 1
            self.step += steps
            for rank in self.staged.ranks if beats else ():
                rank.emit(
                    Heartbeat, step=self.step, step_time=float(steps > 0), own_time=0.0, cpu=cpu,
                    cores=2, memory=1, memory_total=2,
                )  # fmt: skip
            self.monitor.poll()

    def hangs(self) -> list[Hang]:
        return [event for event in self.tail.read() if isinstance(event, Hang)]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    clock = Clock()
    monkeypatch.setattr(monitor, "time", clock)
    with Stage() as stage:
        yield Watched(stage(cell=CELL, values={}), clock)


def test_a_minute_without_a_step(watch: Watched) -> None:
    watch.wait(5, steps=1)
    watch.wait(55)
    assert watch.hangs() == []
    watch.wait(15)
    (hang,) = watch.hangs()
    assert 60 < hang.seconds < 70
    assert not hang.stops
    assert watch.ranks.signals == [STACK_SIGNAL]
    watch.wait(100)
    assert watch.hangs() == []  # once
    watch.wait(2, steps=1)
    assert [event.over for event in watch.hangs()] == [True]


def test_before_the_first_step_and_while_ranks_compute_there_is_more_time(watch: Watched) -> None:
    watch.wait(290)
    assert watch.hangs() == []
    watch.wait(1, steps=1)
    watch.wait(290, cpu=100.0)
    assert watch.hangs() == []
    watch.wait(20, cpu=100.0)
    assert len(watch.hangs()) == 1


def test_a_rank_without_heartbeats_does_not_compute(watch: Watched) -> None:
    watch.wait(5, steps=1, cpu=100.0)
    watch.wait(70, beats=False)
    assert len(watch.hangs()) == 1


def test_ranks_that_start_or_have_finished_do_not_hang(watch: Watched) -> None:
    watch.staged.ranks[1].emit(Status, state="loading")
    watch.wait(400)
    watch.staged.ranks[0].emit(Status, state="collecting")
    watch.staged.ranks[1].emit(Status, state="finished")
    watch.wait(400)
    assert watch.hangs() == []
    assert watch.ranks.signals == []


def in_collective(rank: int, shape: str, number: int) -> RankEvidence:
    collective = Collective("all_reduce", shape, number, pending=True)
    return RankEvidence(rank, stack=CELL_FRAMES, collective=collective)


@pytest.mark.parametrize(
    ("ranks", "cause"),
    [
        ([in_collective(0, "(3,)", 7), in_collective(1, "(4,)", 7)], "different shapes"),
        ([in_collective(0, "(3,)", 7), in_collective(1, "(3,)", 8)], "some have run more of them"),
        ([in_collective(0, "(3,)", 7), RankEvidence(1, over=True)], "different numbers of steps"),
        ([in_collective(0, "(3,)", 7), RankEvidence(1, silent=True)], "interpreter lock"),
        ([in_collective(0, "(3,)", 7), RankEvidence(1, suspended=True)], "Rank 1 is suspended"),
    ],
)
def test_the_likely_cause(ranks: list[RankEvidence], cause: str) -> None:
    assert cause in diagnose(ranks, CellSource(CELL.splitlines())).cause


def test_a_stack_shows_the_cell_and_folds_libraries() -> None:
    source = CellSource(CELL.splitlines())
    library = [StackFrame("/env/lib/python3.11/site-packages/IPython/core/x.py", 1, "run_code")]
    assert format_stack([*library, *CELL_FRAMES], source).splitlines() == [
        "line 2 of the cell: dist.barrier()",
        "torch/distributed/distributed_c10d.py, line 5, in barrier",
    ]
    said = place(RankEvidence(0, stack=CELL_FRAMES), source)
    assert said == "Rank 0 waits in barrier, line 2 of the cell: dist.barrier()"
