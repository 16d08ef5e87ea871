"""A run on 1,024 ranks of 128 nodes: what readers read and send, in counts and ratios."""

import json
import sys
import time
from pathlib import Path

import pytest

import nbmgpu
from nbmgpu.report.digest import quick_line_of
from nbmgpu.report.failure_cause import cause
from nbmgpu.report.kept_summary import SUMMARY_FILE, Summary, summary_of
from nbmgpu.report.node_rows import LINES, RankRequest, node_lines, node_rows, rows_on_nodes
from nbmgpu.report.rank_rows import rows
from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.runs import event_file, polling
from nbmgpu.runs.events import Notice
from nbmgpu.runs.run import Run
from nbmgpu.server.base_handler import to_json
from nbmgpu.server.open_runs import OpenRuns
from nbmgpu.server.run_list import RunListReader
from nbmgpu.server.runs import all_parts
from nbmgpu.server.streams import RunReader

sys.path.append(str(Path(nbmgpu.__file__).parents[1] / "tools"))

from simulated_run import SimulatedRun

RANKS, NODES = 1024, 128


@pytest.fixture
def simulate(monkeypatch, tmp_path):
    """Return a function that starts a simulated run with a second of history."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    started = []

    def start(ranks=RANKS, nodes=NODES):
        started.append(SimulatedRun(ranks, nodes))
        started[-1].start()
        started[-1].advance()
        started[-1].run.poll()
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def lines_read(monkeypatch):
    """Count the lines of events that are read."""
    counted = []

    def decode_lines(lines):
        counted.extend(lines)
        return read(lines)

    read = event_file.decode_lines
    monkeypatch.setattr(event_file, "decode_lines", decode_lines)
    return counted


def changed(snapshot):
    snapshot._heavy_after = 0.0
    snapshot.run.poll()
    return snapshot.changed()


def test_ranks_write_as_many_events_as_readers_can_read(simulate, lines_read):
    many, few = simulate(), simulate(16, 2)
    per_rank = []
    for simulated in (many, few):
        lines_read.clear()
        simulated.advance()
        simulated.run.poll()
        per_rank.append(len([line for line in lines_read if line]) / len(simulated.ranks))
    assert per_rank[0] <= 4  # a heartbeat, the loss, the rate and the progress
    assert per_rank[1] > 20
    # No point is lost.
    assert len(many.run.view.curves["loss"]) == len(few.run.view.curves["loss"]) == 20


def test_a_refresh_opens_only_files_that_have_grown(simulate, monkeypatch):
    simulated = simulate()
    opened = []
    real = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *args: opened.append(path.name) or real(path, *args)
    )
    simulated.run.refresh()
    assert opened == []
    simulated.advance_rank(7, first=10)
    simulated.advance_rank(900, first=10)
    opened.clear()
    simulated.run.refresh()
    assert opened == ["rank-7.jsonl", "rank-900.jsonl"]


def test_the_server_reads_each_event_once(simulate, lines_read):
    simulated = simulate()
    opened = OpenRuns()
    RunListReader(opened).newest()  # what it holds is released: everything is read again
    lines = RunListReader(opened)
    lines_read.clear()
    lines.newest()
    whole = len(lines_read)
    reader = RunReader(opened, simulated.run.id)
    reader.read()
    parts = all_parts(opened, simulated.run.id)
    assert len(lines_read) == whole > 3 * RANKS
    assert len(parts["nodes"]) == NODES
    simulated.advance_rank(3, first=10)
    lines.newest()
    reader.read()
    assert len(lines_read) < whole + 10


def test_a_list_of_runs_in_a_terminal_reads_few_ranks(simulate, lines_read):
    simulated = simulate()
    lines_read.clear()
    line = quick_line_of(Run(simulated.run.folder))
    assert (line.status.state, line.world_size) == ("running", RANKS)
    assert len([each for each in lines_read if each]) < RANKS / 4


def test_the_summary_of_a_finished_run_is_kept(simulate, lines_read):
    simulated = simulate()
    assert summary_of(Run(simulated.run.folder)).text.startswith("running")
    simulated.end()
    found = summary_of(Run(simulated.run.folder))
    assert found.text.startswith("finished")
    lines_read.clear()
    assert summary_of(Run(simulated.run.folder)) == found
    assert found == Summary(summary_text(simulated.run), summary_html(simulated.run))
    lines_read.clear()
    (simulated.run.folder / SUMMARY_FILE).write_text("{")
    assert summary_of(Run(simulated.run.folder)) == found
    simulated.launcher.emit(Notice, topic="late", text="said after the end")
    assert "said after the end" in summary_of(Run(simulated.run.folder)).text


def test_an_update_has_a_row_per_node_and_not_per_rank(simulate):
    simulated = simulate()
    snapshot = Snapshot(simulated.run)
    changed(snapshot)
    simulated.advance()
    parts = changed(snapshot)
    assert len(parts["nodes"]) == NODES
    assert "ranks" not in parts
    of_ranks = to_json(rows(simulated.run, time.time()))
    assert len(to_json(parts["nodes"])) < len(of_ranks) / 6
    assert len(to_json(parts)) < len(of_ranks) / 3
    assert json.loads(json.dumps(parts)) == parts
    parts = changed(snapshot)  # nothing new but the time
    assert len(to_json(parts)) < 1000


def test_on_one_node_there_are_rows_of_ranks_only(simulate):
    simulated = simulate(2, 1)
    whole = Snapshot(simulated.run).whole()
    assert whole["nodes"] == []
    assert [row["rank"] for row in whole["ranks"]] == [0, 1]
    assert "nodes" not in [line.split()[0] for line in summary_text(simulated.run).splitlines()]


def test_the_work_for_rows_grows_with_the_number_of_ranks(simulate):
    """A comparison of each rank with all others would call it a million times."""
    calls = []
    simulated = simulate()

    def count(_frame, event, _argument):
        if event == "call":
            calls.append(1)

    def calls_for(ranks):
        calls.clear()
        sys.setprofile(count)
        try:
            rows(ranks.run, time.time())
        finally:
            sys.setprofile(None)
        return len(calls)

    small = simulate(64, 8)
    assert calls_for(simulated) / calls_for(small) < 1.5 * RANKS / 64


class TestNodeRows:
    def test_a_node_shows_its_worst_rank(self, simulate):
        simulated = simulate(16, 2)
        simulated.fail(11)
        simulated.run.poll()
        good, bad = node_rows(simulated.run, time.time())
        assert (good.name, good.first, good.ranks) == ("node000", 0, 8)
        assert (good.label, good.tone, good.warning) == ("running", "busy", "")
        assert (bad.name, bad.first, bad.ranks) == ("node001", 8, 8)
        assert (bad.label, bad.tone) == ("7 running, 1 failed (exit 1)", "bad")

    def test_step_time_and_memory(self, staged):
        run = staged(4, nodes=2)
        run.start()
        for rank, (step, seconds) in enumerate([(8, 0.01), (9, 0.03), (9, 0.02), (9, 0.02)]):
            memory = 1 << (28 + rank)
            run.heartbeat(rank, step, step_time=seconds, own_time=0.0, memory=memory)
        first, second = node_rows(run.polled(), time.time())
        assert (first.step, first.step_time) == (8, "20 ms")
        assert first.memory.text == "512 MiB"
        assert second.memory.text == "2.0 GiB"
        assert first.gpu_memory is None
        assert first.name == ""  # its ranks have not said which machine it is

    def test_warnings_of_ranks(self, staged):
        run = staged(4, nodes=2)
        run.start()
        for rank, loss in enumerate([0.5, 0.5, float("nan"), float("inf")]):
            run.points("loss", [1], [loss], rank)
        first, second = node_rows(run.polled(), time.time())
        assert first.warning == ""
        assert second.warning == "rank 2: its loss is nan; 1 more rank with a warning"

    def test_the_ranks_of_some_nodes(self, simulate):
        run = simulate(16, 4).run
        found = rows_on_nodes(run, RankRequest([1, 3, 99, -1]), time.time())
        assert [row.rank for row in found] == [4, 5, 6, 7, 12, 13, 14, 15]


class TestSummary:
    def test_a_few_nodes_have_a_line_each(self, simulate):
        simulated = simulate(8, 4)
        simulated.end()
        lines = summary_text(simulated.run).splitlines()
        begin = next(at for at, line in enumerate(lines) if line.startswith("nodes"))
        assert "node000, ranks 0 to 1: finished, step 10, 100 ms per step" in lines[begin]
        assert "node003, ranks 6 to 7: finished" in lines[begin + 3]

    def test_of_many_nodes_those_that_are_alike_share_a_line(self, simulate):
        simulated = simulate()
        simulated.fail(1020)
        simulated.end()
        simulated.run.poll()
        lines = node_lines(node_rows(simulated.run, time.time()))
        assert len(lines) == 2
        assert lines[0].startswith("node127, ranks 1016 to 1023: 7 ended (SIGTERM), 1 failed")
        assert lines[1].startswith("127 nodes (node000 … node126), 8 ranks each: ended (SIGTERM)")
        text = summary_text(simulated.run)
        assert lines[0] in text
        assert len(text.splitlines()) < 20
        assert "<details open><summary>128 nodes" in summary_html(simulated.run)

    def test_many_different_nodes_are_not_listed_all(self, simulate):
        simulated = simulate()
        for node in range(0, 40):
            for rank in range(node % 7 + 1):
                simulated.fail(8 * node + rank)
        simulated.run.poll()
        shown = node_lines(node_rows(simulated.run, time.time()))
        assert len(shown) <= LINES


def test_ranks_that_ended_alike_are_described_once(simulate):
    simulated = simulate()
    simulated.fail(1020)
    simulated.fail(1021)
    simulated.end()
    simulated.run.poll()
    found = cause(simulated.run, "failed")
    assert found.origin == "rank 1020 on node127"
    assert [(o.rank, o.label, o.alike) for o in found.others] == [
        (0, "ended (SIGTERM)", 1021),
        (1021, "failed as well (exit 1)", 0),
    ]
    few = simulate(4, 2)
    few.fail(1)
    few.end()
    few.run.poll()
    assert [other.rank for other in cause(few.run, "failed").others] == [0, 2, 3]


def test_a_slow_reader_reads_less_often(simulate):
    run = simulate(2, 1).run
    quick = polling.EVENTS.pause(run)
    run.read_time = 0.5
    assert polling.EVENTS.pause(run) == pytest.approx(0.5 * (1 / polling.MAX_SHARE - 1))
    run.read_time = 100.0
    assert polling.EVENTS.pause(run) == polling.LONGEST_PAUSE
    run.refresh()
    assert run.read_time < 100.0
    assert quick <= polling.EVENTS.longest


def test_a_finished_run_is_listed_without_reading_its_events(simulate, lines_read):
    simulated = simulate()
    simulated.end()
    line = RunListReader().newest().runs[0]
    assert line.status.state == "finished"
    lines_read.clear()
    assert RunListReader().newest().runs == [line]
    assert lines_read == []
    assert Run(simulated.run.folder).record.nodes == NODES
