"""Snapshots contain plain data, and updates only changed parts."""

import json
import time

import pytest

from nbmgpu.report import text_format
from nbmgpu.report.run_line import run_line
from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.views.registry import BUILT_IN
from nbmgpu.runs.events import Hang

PARTS = set(BUILT_IN)


@pytest.fixture
def constant_clock(monkeypatch):
    """Displayed durations are constant."""
    monkeypatch.setattr(text_format, "clock", lambda seconds, tenths=True: "1 s")


def changed_parts(snapshot):
    """Return changed parts, without the pause between curves and logs."""
    snapshot._heavy_after = 0.0
    snapshot.run.poll()
    return snapshot.changed()


def test_the_first_update_has_all_parts(staged):
    run = staged(2)
    assert set(Snapshot(run.run).changed()) == PARTS
    assert set(Snapshot(run.run).whole()) == PARTS


def test_parts_are_plain_data(staged):
    run = staged(2)
    run.start()
    run.points("loss", [0, 1], [1.0, float("nan")])
    run.heartbeat(0)
    run.fail(1)
    whole = Snapshot(run.polled()).whole()
    assert json.loads(json.dumps(whole)) == whole


def test_run_line_and_snapshot_have_the_same_remaining_time(staged):
    run = staged(1, cell="for epoch in range(10):\n    for x in loader:\n        train(x)\n")
    run.start()
    start = time.time() - 100
    for seconds, epoch, step in [(0, 1, 0), (0, 1, 1), (50, 2, 0), (100, 3, 0)]:
        run.progress_at(start + seconds, step, 10, epoch=epoch)
    run.polled()
    line, whole = run_line(run.run), Snapshot(run.run).whole()
    assert line.progress == pytest.approx(0.2)
    assert "left in epoch" not in line.status.remaining
    assert line.status.remaining == whole["status"]["remaining"] != ""


@pytest.mark.usefixtures("constant_clock")
def test_without_changes_the_update_is_empty(staged):
    run = staged(2)
    run.start()
    run.points("loss", [0, 1], [1.0, float("nan")])
    run.log(0, "text\n")
    snapshot = Snapshot(run.polled())
    snapshot.changed()
    assert changed_parts(snapshot) == {}


@pytest.mark.usefixtures("constant_clock")
def test_updates_have_only_changed_parts(staged):
    run = staged(2)
    run.start()
    snapshot = Snapshot(run.polled())
    snapshot.changed()
    run.progress(1, 2)
    run.notice("something")
    assert set(changed_parts(snapshot)) == {"progress", "notices"}
    run.log(1, "x")
    assert set(changed_parts(snapshot)) == {"logs"}
    run.points("lr", [1], [0.1])
    assert set(changed_parts(snapshot)) == {
        "curves",
        "metrics",
        "ranks",
    }  # the rank has taken a step


def test_curves_and_logs_pause_between_updates_except_at_the_end(staged):
    run = staged(1)
    run.start()
    snapshot = Snapshot(run.polled())
    snapshot.changed()
    run.points("loss", [0], [1.0])
    run.log(0, "text\n")
    run.polled()
    assert not {"curves", "logs"} & set(snapshot.changed())
    run.finish()
    run.polled()
    assert {"curves", "logs"} <= set(snapshot.changed())


def test_a_snapshot_does_not_consume_events(staged):
    run = staged(1)
    snapshot = Snapshot(run.run)
    run.start()
    snapshot.changed()
    assert len(run.run.poll()) == 3


@pytest.mark.parametrize(("force", "stopping"), [(False, "asked"), (True, "forced")])
def test_stopping_is_shown_if_any_process_requested_it(staged, force, stopping):
    run = staged(2)
    run.start()
    run.run.stop(force)
    run.exit(0, -2)
    parts = Snapshot(run.polled()).whole()
    assert (parts["status"]["label"], parts["status"]["stopping"]) == ("stopping", stopping)
    assert parts["ranks"][0]["label"] == "ended (SIGINT)"
    assert parts["ranks"][0]["tone"] == "calm"
    run.end("stopped")
    status = Snapshot(run.polled()).whole()["status"]
    assert (status["label"], status["stopping"], status["over"]) == ("stopped", "", True)


def test_the_headline_has_strategy_devices_and_batch(staged):
    run = staged(2, devices=["cuda:0", "cuda:1"], strategy="fsdp", batch_line="64 = 2 x 32")
    about = Snapshot(run.run).whole()["about"]
    assert about["headline"] == "fsdp on 2 ranks (cuda:0-1)"
    assert (about["batch"], about["folder"]) == ("64 = 2 x 32", str(run.run.folder))


def test_a_mesh_is_in_the_headline_and_positions_are_in_the_rows(staged):
    run = staged(4, strategy="tp", values={"mesh": ["dp=2", "tp=2"]})
    whole = Snapshot(run.run).whole()
    assert whole["about"]["headline"] == "tp on 4 ranks (cpu), dp=2 x tp=2"
    places = [row["device"] for row in whole["ranks"]]
    assert places == ["cpu, dp 0 tp 0", "cpu, dp 0 tp 1", "cpu, dp 1 tp 0", "cpu, dp 1 tp 1"]


def test_the_report_of_a_hang_is_a_notice_until_there_is_progress(staged):
    run = staged(2)
    run.start()
    snapshot = Snapshot(run.run)
    changed_parts(snapshot)
    places = ["Rank 0 waits in barrier", "Rank 1 sleeps"]
    stacks = ["line 1 of the cell: f()\nline 2 of the cell: g()", ""]
    run.launcher.emit(Hang, seconds=61.0, cause="Rank 1 sleeps", places=places, stacks=stacks)
    (text,) = changed_parts(snapshot)["notices"]
    assert text.splitlines()[:5] == [
        "No progress for 61 s. Rank 1 sleeps.",
        "Rank 0 waits in barrier",
        "    line 1 of the cell: f()",
        "    line 2 of the cell: g()",
        "Rank 1 sleeps",
    ]
    run.launcher.emit(Hang, over=True)
    assert changed_parts(snapshot)["notices"] == []
