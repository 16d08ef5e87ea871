"""What the panel's traits say, when they travel, and what comes back from the browser."""

import base64
import random
import time
from types import SimpleNamespace

import pytest
from staged import Stage

from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.report.views.registry import BUILT_IN
from nbmgpu.ui import assets, panel
from nbmgpu.ui.live_output import LiveOutput
from nbmgpu.ui.panel import RunPanel


@pytest.fixture
def staged(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    with Stage() as stage:
        yield stage


def shown(staged_run):
    """A panel of what has happened so far."""
    return RunPanel(staged_run.polled())


def refresh(staged_run, view):
    """Refresh as if all pauses were over."""
    view._next_refresh = view._snapshot._heavy_after = 0.0
    staged_run.run.poll()
    view.refresh()


def sent_by(view, monkeypatch):
    """The messages to the browser from now on."""
    messages = []
    monkeypatch.setattr(view, "_send", lambda message, buffers=None: messages.append(message))
    return messages


def test_has_a_trait_for_every_part(staged):
    view = shown(staged(1))
    assert {f"part_{name}" for name in BUILT_IN} <= set(view.keys)


def test_of_an_empty_run(staged):
    view = shown(staged(2))
    assert (view.part_status["label"], view.part_status["over"]) == ("starting", False)
    assert view.part_about["headline"] == "ddp on 2 ranks (cpu)"
    assert view.part_curves == {"shown": [], "hidden": 0, "epochs": []}
    assert view.part_progress == view.part_notices == []
    assert view.part_failure is None
    assert [row["label"] for row in view.part_ranks] == ["starting", "starting"]


def test_follows_the_run(staged):
    run = staged(2, batch_line="64 = 2 x 32")
    view = shown(run)
    run.start()
    run.progress(3, 12)
    run.notice("dropout draws other numbers")
    refresh(run, view)
    assert view.part_status["label"] == "running"
    assert view.part_about["batch"] == "64 = 2 x 32"
    assert view.part_progress == [
        {"key": "loader", "label": "epoch 1", "count": "3 / 12", "fraction": 0.25}
    ]
    assert view.part_notices == ["dropout draws other numbers"]
    run.finish()
    refresh(run, view)
    assert view.part_status["tone"] == "good"
    assert view.part_status["over"]


def test_never_takes_events_from_the_watcher(staged):
    run = staged(1)
    view = shown(run)
    run.start()
    view.refresh()
    repr(view)
    assert len(run.run.poll()) == 3


class TestTraffic:
    def test_what_changed_travels_in_one_message(self, staged, monkeypatch):
        run = staged(2)
        run.start()
        view = shown(run)
        refresh(run, view)
        messages = sent_by(view, monkeypatch)
        run.progress(1, 2)
        run.notice("something")
        refresh(run, view)
        (message,) = messages
        assert {"part_progress", "part_notices"} <= set(message["state"])
        assert not {"part_curves", "part_ranks", "part_about"} & set(message["state"])

    def test_at_most_five_messages_a_second(self, staged, monkeypatch):
        run = staged(1)
        run.start()
        view = shown(run)
        messages = sent_by(view, monkeypatch)
        begun = time.monotonic()
        for step in range(40):
            run.progress(step, 40)
            run.run.poll()
            view.refresh()
            time.sleep(0.01)
        assert 1 <= len(messages) <= 2 + 5 * (time.monotonic() - begun)

    def test_the_end_is_told_at_once(self, staged):
        run = staged(1)
        run.start()
        view = shown(run)
        view.refresh()
        run.points("loss", [0], [1.0])
        run.finish()
        run.run.poll()
        view.refresh()
        assert view.part_status["label"] == "finished"
        assert view.part_curves["shown"][0]["last"] == "1"

    def test_a_busy_run_costs_little(self, staged):
        run = staged(2)
        for rank in range(2):
            for name in "abcdef":
                run.points(name, list(range(20_000)), [0.5] * 20_000, rank)
        view = shown(run)
        begun, turns = time.process_time(), time.monotonic()
        for step in range(20):
            run.points("a", [20_000 + step], [0.5])
            run.run.poll()
            view.refresh()
            time.sleep(0.05)
        assert time.process_time() - begun < 0.5 * (time.monotonic() - turns)


class TestStop:
    def test_calls_with_what_was_clicked_and_says_at_once_that_it_stops(self, staged):
        run = staged(1)
        run.start()
        view = shown(run)
        view.refresh()
        view.on_stop(run.run.stop)
        view._handle_custom_msg({"kind": "stop", "force": False}, [])
        assert (view.part_status["label"], view.part_status["stopping"]) == ("stopping", "asked")
        view._handle_custom_msg({"kind": "stop", "force": True}, [])
        assert view.part_status["stopping"] == "forced"

    def test_in_the_output_of_a_cell_forces_only_where_that_was_clicked(self, staged):
        run = staged(1)
        run.start()
        output = LiveOutput(run.run, NotebookContext(SimpleNamespace(kernel=None)))
        output.start()
        asked = run.run.folder / "stop"
        for force, said in [(False, "stop"), (False, "stop"), (True, "force"), (False, "force")]:
            output._panel._handle_custom_msg({"kind": "stop", "force": force}, [])
            assert asked.read_text() == said

    def test_other_messages_and_late_clicks_do_nothing(self, staged):
        run = staged(1)
        view = shown(run)
        calls = []
        view.on_stop(calls.append)
        view._handle_custom_msg({"kind": "something"}, [])
        view._handle_custom_msg({}, [])
        run.finish()
        refresh(run, view)
        view._handle_custom_msg({"kind": "stop"}, [])
        assert calls == []


def answer_to(view, monkeypatch, **question):
    messages = sent_by(view, monkeypatch)
    view._handle_custom_msg({"kind": "ask", "id": 7, **question}, [])
    (answer,) = [message["content"] for message in messages]
    assert (answer["kind"], answer["id"]) == ("answer", 7)
    return answer["answer"]


def test_lines_of_a_log_are_sent_when_asked_for(staged, monkeypatch):
    run = staged(2)
    run.log(1, "one\ntwo\nthree\n")
    view = shown(run)
    request = {"rank": 1, "first": 1, "count": 2, "search": ""}
    page = answer_to(view, monkeypatch, logs=request)
    assert [line["text"] for line in page["lines"]] == ["two", "three"]
    assert view.part_logs[1] == {"lines": 3, "size": 14}


def test_a_stretch_of_a_curve_is_sent_when_asked_for(staged, monkeypatch):
    run = staged(1)
    run.points("loss", list(range(5000)), [0.5] * 5000)
    view = shown(run)
    line = answer_to(view, monkeypatch, curve={"name": "loss", "first": 10, "last": 19})
    assert line["steps"] == 12
    nothing = {"name": "other", "first": 10, "last": 19}
    assert answer_to(view, monkeypatch, curve=nothing) is None


def test_the_metrics_are_sent_as_csv_when_asked_for(staged, monkeypatch):
    run = staged(1)
    run.points("loss", list(range(9000)), [0.5] * 9000)
    view = shown(run)
    page = answer_to(view, monkeypatch, csv={"after": -1, "columns": []})
    assert page["text"].startswith("step,loss\n0,0.5\n")
    rest = {"after": page["last"], "columns": page["columns"]}
    assert answer_to(view, monkeypatch, csv=rest)["last"] == 8999


def test_a_trace_is_sent_in_parts_when_asked_for(staged, monkeypatch):
    run, trace = staged(2), random.Random(0).randbytes(400_000)
    view = shown(run)
    run.profile(1, trace)
    got, offset = b"", 0
    while offset < len(trace):
        part = answer_to(view, monkeypatch, trace={"rank": 1, "offset": offset})
        assert (part["size"], part["end"] > offset) == (len(trace), True)
        got, offset = got + base64.b64decode(part["content"]), part["end"]
    assert got == trace
    nothing = {"content": "", "end": 0, "size": 0}
    assert answer_to(view, monkeypatch, trace={"rank": 0, "offset": 0}) == nothing


def test_choices_are_kept_for_a_reloaded_page(staged):
    view = shown(staged(1))
    view._handle_custom_msg({"kind": "choose", "key": "log rank", "value": 1}, [])
    view._handle_custom_msg({"kind": "choose", "key": "smoothing", "value": 0.5}, [])
    assert view.choices == {"log rank": 1, "smoothing": 0.5}


class TestBuilt:
    def test_a_clone_without_node_says_so_in_words(self, monkeypatch, tmp_path):
        monkeypatch.setattr(assets, "FOLDER", tmp_path)
        script = assets.script("panel")
        assert "export default" in script
        assert "is not built" in script
        assert assets.style("panel") == ""

    def test_what_is_built_is_taken(self, monkeypatch, tmp_path):
        monkeypatch.setattr(assets, "FOLDER", tmp_path)
        (tmp_path / "panel.js").write_text("export default {}")
        assert assets.script("panel") == "export default {}"
        monkeypatch.setenv("ANYWIDGET_HMR", "1")
        assert assets.script("panel") == tmp_path / "panel.js"

    def test_the_panel_uses_it(self):
        assert panel.script is assets.script
