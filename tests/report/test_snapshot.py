"""What travels, and that nothing travels twice."""

import json
import time

import pytest

from nbmgpu.report import text_format
from nbmgpu.report.run_line import run_line
from nbmgpu.report.snapshot import Parts, Snapshot

PARTS = set(Parts.__annotations__)


@pytest.fixture
def still(monkeypatch):
    """Time is written down, but does not pass."""
    monkeypatch.setattr(text_format, "clock", lambda seconds, tenths=True: "1 s")


def heavy(snapshot):
    """What has changed, as if the pause of curves and logs were over."""
    snapshot._heavy_after = 0.0
    snapshot.run.poll()
    return snapshot.changed()


def test_the_first_time_everything_travels(staged):
    run = staged(2)
    assert set(Snapshot(run.run).changed()) == PARTS
    assert set(Snapshot(run.run).whole()) == PARTS


def test_is_plain_data(staged):
    run = staged(2)
    run.start()
    run.points("loss", [0, 1], [1.0, float("nan")])
    run.heartbeat(0)
    run.fail(1)
    whole = Snapshot(run.polled()).whole()
    assert json.loads(json.dumps(whole)) == whole


def test_a_list_and_the_run_itself_agree_on_what_is_left(staged):
    run = staged(1, cell="for epoch in range(10):\n    for x in loader:\n        train(x)\n")
    run.start()
    begun = time.time() - 100
    for seconds, epoch, step in [(0, 1, 0), (0, 1, 1), (50, 2, 0), (100, 3, 0)]:
        run.progress_at(begun + seconds, step, 10, epoch=epoch)
    run.polled()
    line, whole = run_line(run.run), Snapshot(run.run).whole()
    assert line.progress == pytest.approx(0.2)
    assert "left in epoch" not in line.remaining
    assert line.remaining == whole["status"]["remaining"] != ""


@pytest.mark.usefixtures("still")
def test_nothing_travels_when_nothing_changed(staged):
    run = staged(2)
    run.start()
    run.points("loss", [0, 1], [1.0, float("nan")])
    run.log(0, "text\n")
    snapshot = Snapshot(run.polled())
    snapshot.changed()
    assert heavy(snapshot) == {}


@pytest.mark.usefixtures("still")
def test_only_what_changed_travels(staged):
    run = staged(2)
    run.start()
    snapshot = Snapshot(run.polled())
    snapshot.changed()
    run.progress(1, 2)
    run.notice("something")
    assert set(heavy(snapshot)) == {"progress", "notices"}
    run.log(1, "x")
    assert set(heavy(snapshot)) == {"logs"}
    run.points("lr", [1], [0.1])
    assert set(heavy(snapshot)) == {"curves", "ranks"}  # the rank has taken a step


def test_curves_and_logs_rest_between_updates_but_not_at_the_end(staged):
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


def test_leaves_the_events_to_the_watcher(staged):
    run = staged(1)
    snapshot = Snapshot(run.run)
    run.start()
    snapshot.changed()
    assert len(run.run.poll()) == 3


@pytest.mark.parametrize(("force", "said"), [(False, "asked"), (True, "forced")])
def test_says_stopping_whoever_asked(staged, force, said):
    run = staged(2)
    run.start()
    run.run.stop(force)
    run.exit(0, -2)
    parts = Snapshot(run.polled()).whole()
    assert (parts["status"]["word"], parts["status"]["stopping"]) == ("stopping", said)
    assert parts["ranks"][0]["word"] == "ended (SIGINT)"
    assert parts["ranks"][0]["tone"] == "calm"
    run.end("stopped")
    status = Snapshot(run.polled()).whole()["status"]
    assert (status["word"], status["stopping"], status["over"]) == ("stopped", "", True)


def test_says_what_was_asked(staged):
    run = staged(2, devices=["cuda:0", "cuda:1"], strategy="fsdp", batch_line="64 = 2 x 32")
    about = Snapshot(run.run).whole()["about"]
    assert about["headline"] == "fsdp on 2 ranks (cuda:0-1)"
    assert (about["batch"], about["folder"]) == ("64 = 2 x 32", str(run.run.folder))
