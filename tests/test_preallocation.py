"""Disk space that is preallocated for event files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbmgpu.runs.event_file import EventTail, EventWriter
from nbmgpu.runs.events import Heartbeat, Metrics, Notice, Restart, Status
from nbmgpu.runs.preallocation import RESERVE, ReservedSpace, allocate


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "events"
    with path.open("wb") as file:
        if not allocate(file.fileno(), 1):
            pytest.skip("this file system has no fallocate")
    path.unlink()
    return path


def test_space_is_allocated_beyond_the_end_of_the_file(path: Path) -> None:
    writer = EventWriter(path, 0)
    assert allocated_bytes(path) >= RESERVE
    assert path.read_bytes() == b""
    writer.emit(Notice, topic="a", text="first")
    assert [event.kind for event in EventTail(path).read()] == ["notice"]
    writer.close()


def test_ordinary_events_keep_the_reserve(path: Path) -> None:
    writer = EventWriter(path, 0)
    for step in range(1000):
        writer.emit(
            Heartbeat, step=step, step_time=0, own_time=0, cpu=0, cores=1, memory=0, memory_total=0
        )
        assert allocated_bytes(path) >= path.stat().st_size + RESERVE
    writer.close()


def test_unused_space_is_released(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        reserve = ReservedSpace(file.fileno())
        file.write(b"a line\n")
        reserve.release()
    assert path.read_bytes() == b"a line\n"
    assert allocated_bytes(path) < RESERVE


def test_events_that_explain_an_error_are_not_lost_in_silence() -> None:
    writer = EventWriter(Path("/dev/full"), 0)
    with pytest.raises(OSError, match="No space left on device"):
        writer.emit(Restart, reason="a")
    writer.close()


def test_rare_events_wait_for_space_and_frequent_ones_are_dropped(path: Path) -> None:
    writer = EventWriter(Path("/dev/full"), 0)
    for step in range(3):
        writer.emit(Metrics, name="loss", steps=[step], values=[0.0], weights=[1.0])
    writer.emit(Status, state="collecting")
    writer._file.close()
    writer._file = path.open("ab", buffering=0)  # there is space again
    writer.emit(Status, state="finished")
    writer.close()
    notice, *others = EventTail(path).read()
    assert "No space left on device. Metrics and output are missing" in notice.text
    assert [event.state for event in others] == ["collecting", "finished"]
