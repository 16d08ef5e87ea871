"""Merged events lead readers to the view that those have who have followed the run."""

from __future__ import annotations

import math
import random
import threading
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nbmgpu.runs.event_file import EventTail, EventWriter
from nbmgpu.runs.events import (
    Display,
    Event,
    Failure,
    Heartbeat,
    Metrics,
    Notice,
    Progress,
    Started,
    Status,
    Stderr,
)
from nbmgpu.runs.merged_events import KEPT, PART, merge, merged_path
from nbmgpu.runs.view import RunView

BEAT = {"step_time": 0.1, "own_time": 0.05, "cores": 2, "memory_total": 1 << 34}


@pytest.fixture(autouse=True)
def _even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = count(1)
    clock = SimpleNamespace(time=lambda: 0.01 * next(moments))
    monkeypatch.setattr("nbmgpu.runs.event_file.time", clock)


def train(events: EventWriter, steps: int, first: int = 1) -> None:
    """Write what a rank does in some steps, each of which takes a tenth of a second."""
    drawn = random.Random(first)
    for step in range(first, first + steps):
        loss = math.nan if step == 50 else drawn.random()
        weight = float(step % 7)
        events.emit(Metrics, name="loss", steps=[step], values=[loss], weights=[weight])
        events.emit(Metrics, name="lr", steps=[step], values=[0.1], weights=[1.0])
        passed = {"epoch": 1 + step // 900, "step": step % 900, "total": 900}
        events.emit(Progress, key="loader", label="epoch", train_step=step, samples=step, **passed)
        if step % 10 == 0:
            usage = {"cpu": 100 * drawn.random(), "memory": drawn.randrange(1 << 30)}
            events.emit(Heartbeat, step=step, logged=3 * step, **BEAT, **usage)
        if step % 5 == 0:
            events.emit(Stderr, start=step, end=step + 5)
        if step % 400 == 0:
            events.emit(Notice, topic=f"at {step}", text="said")
            events.emit(Display, offset=3 * step, data={"merged": 7})


def view_of(events: list[Event]) -> RunView:
    view = RunView(1)
    for event in events:
        view.add(event)
    return view


def assert_equal(one: RunView, other: RunView) -> None:
    """Fail unless both views show the same, where the one may have seen fewer moments."""
    assert [*one.curves] == [*other.curves]
    for name, curve in one.curves.items():
        for found, expected in zip(curve.arrays(), other.curves[name].arrays(), strict=True):
            np.testing.assert_array_equal(found, expected)
    ours, theirs = one.ranks[0], other.ranks[0]
    assert (one.notices, one.progress) == (other.notices, other.progress)
    assert one.tracks["loader"].begun == other.tracks["loader"].begun
    for name in ("process", "state", "failure", "step", "last_time", "heartbeat", "recent"):
        assert repr(getattr(ours, name)) == repr(getattr(theirs, name)), name  # repr: nan
    assert vars(ours.log.stderr) == vars(theirs.log.stderr)
    assert ours.log.offsets[-1] == theirs.log.offsets[-1]
    steps = np.arange(1, theirs.step)
    for axis in ("times", "epochs", "samples"):
        pairs = [np.array(getattr(view.clock, axis)).T for view in (one, other)]
        found, exact = (np.interp(steps, *pair) for pair in pairs)
        assert np.abs(found - exact).max() <= 0.02 * np.ptp(exact), axis


def written(path: Path, steps: int = 2000) -> EventWriter:
    events = EventWriter(path, 0)
    events.emit(Started, pid=1, create_time=1.0)
    events.emit(Status, state="running")
    train(events, steps)
    return events


def test_who_reads_later_sees_the_same_in_fewer_events(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    follower = EventTail(path)
    assert follower.read() == []
    events = written(path)
    all_events, fewer = follower.read(), EventTail(path).read()
    assert len(all_events) > 5000
    assert len(fewer) < len(all_events) / 3
    assert_equal(view_of(fewer), view_of(all_events))
    late = EventTail(path)
    begun = late.read()
    train(events, 1000, first=2001)
    failure: dict[str, Any] = {"type": "E", "message": "m", "line": 1, "traceback": []}
    events.emit(Failure, **failure)
    events.emit(Status, state="failed")
    events.close()
    all_events += follower.read()
    assert_equal(view_of(begun + late.read()), view_of(all_events))
    assert_equal(view_of(EventTail(path).read()), view_of(all_events))
    assert late.read() == []


def test_each_part_keeps_a_few_moments(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    written(path, 3000).close()
    parts = path.stat().st_size // PART
    fewer = EventTail(path).read()
    beats = [event for event in fewer if isinstance(event, Heartbeat)]
    tail = PART / path.stat().st_size * 300  # in the part that is not merged yet, at most
    assert parts <= len(beats) <= (KEPT + 1) * parts + tail
    assert sum(len(e.steps) for e in fewer if isinstance(e, Metrics)) == 6000


@pytest.mark.parametrize("lost", [1, 40, 5000])
def test_a_part_that_is_not_complete_is_read_from_the_first_file(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "rank-0.jsonl"
    written(path).close()
    expected = view_of(EventTail(path).read())
    with merged_path(path).open("r+b") as file:
        file.truncate(merged_path(path).stat().st_size - lost)
    assert_equal(view_of(EventTail(path).read()), expected)


def test_merged_events_of_another_file_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    written(path).close()
    path.write_text("")
    assert EventTail(path).read() == []


def test_no_event_is_lost_between_threads(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    events = EventWriter(path, 0)

    def write(name: str) -> None:
        for step in range(1, 1500):
            events.emit(Metrics, name=name, steps=[step], values=[1.0], weights=[1.0])

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.close()
    curves = view_of(EventTail(path).read()).curves
    assert [len(curve) for _, curve in sorted(curves.items())] == [1499] * 3
    assert all(set(curve.weights.values()) == {1.0} for curve in curves.values())


def test_the_last_events_of_one_of_many_files_are_merged_too(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    written(path, 300).close()
    all_events = EventTail(path).read()
    fewer = EventTail(path, is_one_of_many=True).read()
    assert repr(view_of(fewer).curves) == repr(view_of(all_events).curves)
    assert len(fewer) < len(all_events) / 10
    path = tmp_path / "rank-1.jsonl"
    follower = EventTail(path)
    assert follower.read() == []
    written(path, 300).close(merge=True)
    fewer, all_events = EventTail(path).read(), follower.read()
    assert len(fewer) < len(all_events) / 10
    assert repr(view_of(fewer).curves) == repr(view_of(all_events).curves)


def test_a_damaged_line_among_others_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    written(path, 10).close()
    whole = EventTail(path).read()
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b'{"kind":\n', b"\n", b'{"kind":"status","time":1}\n', b"[1\n", b"1],[2\n"):
        path.write_bytes(b"".join([*lines[:4], damaged, *lines[4:]]))
        assert EventTail(path).read() == whole


def test_a_file_that_goes_on_is_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    written(path, 3).close()
    again = EventWriter(path, 0)
    train(again, 2000, first=4)
    again.close()
    assert not merged_path(path).exists()


def test_bars_keep_where_they_begin_anew() -> None:
    states = [
        Progress(float(i), 0, "bar", "", step=i % 50, total=50, epoch=i // 50) for i in range(120)
    ]
    steps = [(event.epoch, event.step) for event in merge(states) if isinstance(event, Progress)]
    assert {(1, 0), (2, 0), (2, 19)} <= set(steps)
    assert len(steps) < 10
