"""What the panel's traits say, and when they travel."""

import math
import random
import time

import numpy as np
import pytest
from staged import Stage

from nbmgpu.ui import content
from nbmgpu.ui.panel import CURVES, LOG_BYTES, LOG_LINES, LogTail, RunPanel


@pytest.fixture
def staged(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    with Stage() as stage:
        yield stage


def shown(staged_run):
    """A panel of what has happened so far."""
    return RunPanel(staged_run.polled())


def refresh(staged_run, panel, heavy=True):
    """Refresh; ``heavy`` as if the pause of curves and logs were over."""
    if heavy:
        panel._heavy_after = 0.0
    staged_run.run.poll()
    panel.refresh()


def points(curve):
    return np.frombuffer(curve["points"], "<f4").reshape(-1, 2)


def sent_by(panel, monkeypatch):
    """The names of the traits in each message to the browser from now on."""
    messages = []

    def send(message, buffers=None):
        messages.append(set(message["state"]))

    monkeypatch.setattr(panel, "_send", send)
    return messages


class TestStatus:
    def test_of_an_empty_run(self, staged):
        panel = shown(staged(2))
        assert panel.status["word"] == "starting"
        assert panel.about["headline"] == "ddp on 2 ranks (cpu)"
        assert panel.about["batch"] == ""
        assert panel.curves == panel.progress == panel.notices == []
        assert panel.failure is None
        assert panel.logs == {"0": ""}
        assert [mark["word"] for mark in panel.ranks] == ["starting", "starting"]

    def test_follows_the_run(self, staged):
        run = staged(2, batch_line="64 = 2 x 32")
        panel = shown(run)
        run.start()
        run.progress(3, 12)
        run.notice("dropout draws other numbers")
        refresh(run, panel)
        assert panel.status["word"] == "running"
        assert panel.about["batch"] == "64 = 2 x 32"
        assert panel.progress == [
            {"key": "loader", "label": "epoch 1", "count": "3 / 12", "fraction": 0.25}
        ]
        assert panel.notices == ["dropout draws other numbers"]
        run.finish()
        refresh(run, panel)
        assert panel.status["tone"] == "good"
        assert panel.status["over"]

    def test_says_stopping_whoever_asked(self, staged):
        run = staged(2)
        run.start()
        panel = shown(run)
        run.run.stop()
        run.exit(0, -2)
        refresh(run, panel)
        assert panel.status["word"] == "stopping"
        assert panel.ranks[0] == {
            "rank": 0, "word": "ended (SIGINT)", "tone": "calm", "device": "cpu", "detail": "",
        }  # fmt: skip

    def test_names_the_failed_rank_and_the_cells_line(self, staged):
        run = staged(2)
        run.start()
        run.fail(1, "ValueError", "<b>bad</b>", line=2)
        run.exit(1, 1)
        run.exit(0, -15)
        run.end("failed")
        panel = shown(run)
        assert panel.failure == {
            "who": "rank 1",
            "what": "ValueError: <b>bad</b>",
            "number": 2,
            "line": "loss = criterion(model(x), y)",
        }
        assert [mark["word"] for mark in panel.ranks] == ["ended (SIGTERM)", "failed (exit 1)"]
        assert [mark["tone"] for mark in panel.ranks] == ["calm", "bad"]

    def test_explains_a_killed_rank_by_the_launchers_word(self, staged):
        run = staged(2)
        run.start()
        run.exit(1, -9)
        run.exit(0, -15)
        run.end("failed", "rank 1 was killed, probably out of memory")
        panel = shown(run)
        assert panel.failure["who"] == "rank 1"
        assert panel.failure["what"] == "rank 1 was killed, probably out of memory"
        assert panel.ranks[1]["word"] == "failed (SIGKILL)"

    @pytest.mark.parametrize("line", [0, 999])
    def test_does_without_the_cells_line(self, staged, line):
        run = staged(1)
        run.fail(0, line=line)
        assert shown(run).failure["line"] == ""

    def test_never_takes_events_from_the_watcher(self, staged):
        run = staged(1)
        panel = shown(run)
        run.start()
        panel.refresh()
        repr(panel)
        assert len(run.run.poll()) == 3


class TestStop:
    def test_first_click_asks_second_forces(self, staged):
        panel = shown(staged(1))
        calls = []
        panel.on_stop(calls.append)
        panel._handle_custom_msg({"kind": "stop"}, [])
        assert panel.stop_clicks == 1
        panel._handle_custom_msg({"kind": "stop"}, [])
        assert calls == [False, True]

    def test_other_messages_and_late_clicks_do_nothing(self, staged):
        run = staged(1)
        panel = shown(run)
        calls = []
        panel.on_stop(calls.append)
        panel._handle_custom_msg({"kind": "something"}, [])
        run.finish()
        refresh(run, panel)
        panel._handle_custom_msg({"kind": "stop"}, [])
        assert calls == []


class TestCurves:
    def test_loss_comes_first_and_values_are_for_people(self, staged):
        run = staged(1)
        run.points("lr", [0], [1e-5])
        run.points("samples/s", [0], [12345.6])
        run.points("loss", [0, 1], [2.5, 0.123456])
        panel = shown(run)
        assert [(c["name"], c["last"]) for c in panel.curves] == [
            ("loss", "0.1235"), ("lr", "1e-5"), ("samples/s", "12,346"),
        ]  # fmt: skip
        assert points(panel.curves[0]).tolist() == [[0.0, 2.5], [1.0, pytest.approx(0.123456)]]

    def test_nan_and_inf_make_gaps(self, staged):
        run = staged(1)
        run.points("loss", [0, 1, 2], [1.0, math.inf, math.nan])
        (curve,) = shown(run).curves
        assert curve["last"] == "nan"
        assert not curve["sound"]
        assert np.isinf(points(curve)[1, 1])

    def test_a_curve_of_empty_slices_is_not_shown(self, staged):
        run = staged(1)
        run.points("loss", [0], [math.nan], weight=0.0)
        assert shown(run).curves == []

    def test_many_curves_share_the_room(self, staged):
        run = staged(1)
        for index in range(CURVES + 5):
            run.points(f"metric {index}", list(range(2000)), [0.5] * 2000)
        panel = shown(run)
        assert len(panel.curves) == CURVES
        assert panel.hidden_curves == 5
        assert sum(len(points(curve)) for curve in panel.curves) <= 8000

    def test_100_000_points_stay_fast_and_small(self, staged):
        run = staged(2)
        chance = random.Random(0)
        for rank in range(2):
            for start in range(0, 100_000, 500):
                steps = list(range(start, start + 500))
                run.points("loss", steps, [chance.random() for _ in steps], rank)
        panel = shown(run)
        run.points("loss", [100_000], [7.0])
        run.run.poll()
        begun = time.perf_counter()
        refresh(run, panel)
        assert time.perf_counter() - begun < 0.5
        (curve,) = panel.curves
        assert curve["last"] == "7"
        assert curve["steps"] == 100_001
        assert len(points(curve)) <= 1000


class TestThin:
    def thin(self, values, limit):
        curve = content.Curve()
        count = len(values)
        curve.sums = dict(enumerate(values))
        curve.weights = dict.fromkeys(range(count), 1.0)
        return content.thin(curve, limit)

    def test_leaves_short_curves_alone(self):
        steps, values = self.thin([3.0, 1.0, 2.0], 10)
        assert steps.tolist() == [0, 1, 2]
        assert values.tolist() == [3.0, 1.0, 2.0]

    @pytest.mark.parametrize("count", [11, 50, 1000, 1001, 99_999])
    @pytest.mark.parametrize("limit", [10, 60, 1000])
    def test_keeps_ends_spikes_and_order(self, count, limit):
        values = [1.0] * count
        values[count // 3], values[2 * count // 3] = 9.0, -9.0
        steps, kept = self.thin(values, limit)
        assert len(steps) <= max(limit, 10)
        assert (np.diff(steps) > 0).all()
        assert (steps[0], steps[-1]) == (0, count - 1)
        assert (kept.max(), kept.min()) == (9.0, -9.0)

    def test_keeps_a_gap(self):
        values = [1.0] * 5000
        values[1234] = math.nan
        steps, kept = self.thin(values, 100)
        assert steps[np.isnan(kept)].tolist() == [1234]

    def test_bears_a_curve_of_nan(self):
        steps, kept = self.thin([math.nan] * 5000, 100)
        assert 0 < len(steps) <= 100
        assert np.isnan(kept).all()


class TestTraffic:
    def test_nothing_travels_when_nothing_changed(self, staged, monkeypatch):
        run = staged(2)
        run.start()
        run.points("loss", [0, 1], [1.0, math.nan])
        run.log(0, "text\n")
        panel = shown(run)
        monkeypatch.setattr(content, "clock", lambda seconds, tenths=True: "1 s")
        refresh(run, panel)
        messages = sent_by(panel, monkeypatch)
        refresh(run, panel)
        assert messages == []

    def test_only_what_changed_travels_in_one_message(self, staged, monkeypatch):
        monkeypatch.setattr(content, "clock", lambda seconds, tenths=True: "1 s")
        run = staged(2)
        run.start()
        panel = shown(run)
        messages = sent_by(panel, monkeypatch)
        run.progress(1, 2)
        run.notice("something")
        refresh(run, panel)
        assert messages == [{"progress", "notices"}]

    def test_curves_and_logs_rest_between_updates(self, staged):
        run = staged(1)
        run.start()
        panel = shown(run)
        run.points("loss", [0], [1.0])
        run.log(0, "text\n")
        refresh(run, panel, heavy=False)
        assert panel.curves == []
        run.finish()
        refresh(run, panel, heavy=False)
        assert panel.curves[0]["last"] == "1"
        assert panel.logs["0"] == "text\n"


class TestLogs:
    def test_only_rank_0_and_the_open_one_travel(self, staged):
        run = staged(4)
        for rank in range(4):
            run.log(rank, f"rank {rank}\n")
        panel = shown(run)
        assert panel.logs == {"0": "rank 0\n"}
        panel.selected = 2
        assert panel.logs == {"0": "rank 0\n", "2": "rank 2\n"}
        panel.selected = -1
        assert panel.logs == {"0": "rank 0\n"}

    def test_text_is_what_a_terminal_leaves(self, staged):
        run = staged(1)
        run.log(0, "\x1b[31mred\x1b[0m\n10%\r50%\r100%\r\n\x1b]0;title\x07<script>é ✓\n\x00\xff")
        assert shown(run).logs["0"] == "red\n100%\n<script>é ✓\nÿ"

    def test_bytes_that_are_no_text_do_not_matter(self, staged):
        run = staged(1)
        run.log(0, b"ok \xff\xfe\n")
        assert shown(run).logs["0"].startswith("ok ")

    def test_only_the_end_of_a_huge_log_is_read(self, staged):
        run = staged(1)
        with run.run.log_path(0).open("wb") as file:
            file.truncate(100 << 20)  # a hole: costs no disk
            file.seek(0, 2)
            file.write(b"".join(b"\nline %d" % n for n in range(1000)))
        tail = LogTail(run.run.log_path(0))
        begun = time.perf_counter()
        lines = tail.read().splitlines()
        assert time.perf_counter() - begun < 0.2
        assert lines[-1] == "line 999"
        assert len(lines) <= LOG_LINES + 1

    def test_one_endless_line_is_cut(self, staged):
        run = staged(1)
        run.log(0, "x" * (3 * LOG_BYTES))
        assert LogTail(run.run.log_path(0)).read() == "x" * LOG_BYTES

    def test_grows_with_its_file(self, staged):
        run = staged(1)
        tail = LogTail(run.run.log_path(0))
        assert tail.read() == ""
        run.log(0, "one\n")
        assert tail.read() == "one\n"
        run.log(0, "two")
        assert tail.read() == "one\ntwo"


class TestWords:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "0"), (0.1, "0.1"), (1 / 3, "0.3333"), (123.456, "123.5"), (999.96, "1000"),
            (1234.5, "1,234"), (-5678.9, "-5,679"),
            (1.25e-5, "1.25e-5"), (-2e-100, "-2e-100"), (3e9, "3e9"),
            (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"),
        ],
    )  # fmt: skip
    def test_number(self, value, text):
        assert content.number(value) == text

    @pytest.mark.parametrize(
        ("seconds", "text"), [(0, "0.0 s"), (12.34, "12.3 s"), (185, "3:05"), (3723, "1:02:03")]
    )
    def test_clock(self, seconds, text):
        assert content.clock(seconds) == text

    @pytest.mark.parametrize(
        ("devices", "text"),
        [
            (["cpu"], "cpu"), (["cpu", "cpu"], "cpu"), (["cuda:0"], "cuda:0"),
            (["cuda:0", "cuda:1", "cuda:2"], "cuda:0-2"), (["cuda:0", "cuda:2"], "cuda:0, cuda:2"),
            (["cuda:0", "cpu"], "cuda:0, cpu"), ([], ""),
        ],
    )  # fmt: skip
    def test_device_names(self, devices, text):
        assert content.device_names(devices) == text

    def test_lone_surrogates_can_be_sent(self):
        assert content.plain("a\udcffb").encode() == b"a?b"

    def test_bars_are_few_and_those_that_matter(self, staged):
        run = staged(1)
        run.progress(5, 0, label="train", epoch=2)
        run.progress(5, 5, key="old", label="old", epoch=0, done=True)
        for name in "abcd":
            run.progress(1, 4, key=name, label=name, epoch=0)
        bars = content.bars(run.polled().view)
        assert [bar.label for bar in bars] == ["epoch 2 · train", "b", "c", "d"]
        assert (bars[0].count, bars[0].fraction) == ("5", -1)
