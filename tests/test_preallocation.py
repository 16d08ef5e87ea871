"""Room that an event file has before it needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbmgpu.runs.events import EventTail, EventWriter, Heartbeat, Notice
from nbmgpu.runs.preallocation import RESERVE, ReservedSpace, allocate


def held(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "events"
    with path.open("wb") as file:
        if not allocate(file.fileno(), 1):
            pytest.skip("this file system has no fallocate")
    path.unlink()
    return path


def test_room_is_there_before_anything_is_written_and_no_reader_sees_it(path: Path) -> None:
    writer = EventWriter(path, 0)
    assert held(path) >= RESERVE
    assert path.read_bytes() == b""
    writer.emit(Notice, topic="a", text="first")
    assert [event.kind for event in EventTail(path).read()] == ["notice"]
    writer.close()


def test_ordinary_events_leave_it_alone(path: Path) -> None:
    writer = EventWriter(path, 0)
    for step in range(1000):
        writer.emit(
            Heartbeat, step=step, step_time=0, own_time=0, cpu=0, cores=1, memory=0, memory_total=0
        )
        assert held(path) >= path.stat().st_size + RESERVE
    writer.close()


def test_what_was_not_needed_goes_back(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        reserve = ReservedSpace(file.fileno())
        file.write(b"a line\n")
        reserve.release()
    assert path.read_bytes() == b"a line\n"
    assert held(path) < RESERVE


def test_a_full_disk_is_told_and_nothing_half_is_written() -> None:
    writer = EventWriter(Path("/dev/full"), 0)
    with pytest.raises(OSError, match="No space left on device"):
        writer.emit(Notice, topic="a", text="b")
    writer.close()
