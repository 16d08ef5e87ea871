"""Run folders: state, listing, deletion and causes of failures."""

import dataclasses
import os
import shutil
import socket
import stat
import sys
import time
from pathlib import Path

import pytest
from staged import Stage

import nbmgpu
from nbmgpu.errors import OptionError, SerializationError
from nbmgpu.kernel import executor
from nbmgpu.kernel.executor import select_run
from nbmgpu.report.digest import line_of, write_digest
from nbmgpu.runs.events import Display, Ended, Exited, Failure, Notice, Started
from nbmgpu.runs.folder import new_run_id, runs_root
from nbmgpu.runs.record import KernelRecord
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run, list_runs
from nbmgpu.system.processes import own_process, process_is_alive


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


def test_only_the_owner_can_read_a_run_folder(stage):
    staged = stage(1)
    assert stat.S_IMODE(staged.run.folder.stat().st_mode) == 0o700


def test_a_second_reader_has_the_same_state(stage):
    staged = stage(2)
    staged.start()
    staged.points("loss", [1, 2], [2.0, 4.0], rank=0, weight=1.0)
    staged.points("loss", [1, 2], [4.0, 8.0], rank=1, weight=3.0)
    other = Run(staged.run.folder)
    assert other.state == "running"
    assert other.metrics["loss"].tolist() == [3.5, 7.0]
    assert other.cell == staged.run.cell


def test_reading_the_state_does_not_consume_events(stage):
    staged = stage(1)
    staged.start()
    assert staged.run.state == "running"
    assert staged.run.metrics.empty
    kinds = [event.kind for event in staged.run.poll()]
    assert kinds.count("started") == 2
    assert staged.run.poll() == []


def test_a_run_whose_launcher_has_died_is_lost(stage):
    staged = stage(1)
    staged.launcher.emit(Started, pid=os.getpid(), create_time=1.0)
    assert staged.run.state == "lost"
    assert staged.run.over


def test_a_run_whose_kernel_died_before_the_launcher_started_is_lost(stage):
    staged = stage(1, create_time=1.0)
    assert staged.run.state == "lost"


def test_entries_of_finished_runs_are_read_from_the_digest(stage):
    staged = stage(1)
    staged.start()
    assert line_of(Run(staged.run.folder)).status.state == "running"
    staged.launcher.emit(Ended, ending="finished")
    assert line_of(Run(staged.run.folder)).status.state == "finished"
    again = Run(staged.run.folder)
    assert line_of(again).status.state == "finished"
    assert again.view.ended is None
    staged.launcher.emit(Ended, ending="failed")  # the digest is outdated
    assert line_of(again).status.state == "failed"


def test_stop_is_a_file(stage):
    staged = stage(1)
    staged.run.stop()
    assert (staged.run.folder / "stop").read_text() == "stop"
    staged.run.stop(force=True)
    assert (staged.run.folder / "stop").read_text() == "force"
    staged.run.stop()
    assert (staged.run.folder / "stop").read_text() == "force", "a forced stop cannot be weakened"


def test_runs_are_listed_newest_first_and_found_by_prefix(runs, stage):
    names = ["20260101-000000-aaaa", "20260102-000000-bbbb"]
    for name in names:
        stage(1, id=name)
    (runs / "20260103-broken").mkdir()
    assert [run.id for run in list_runs()] == names[::-1]
    assert find_run().id == names[1]
    assert find_run("20260101").id == names[0]
    with pytest.raises(OptionError, match="several runs"):
        find_run("2026")
    with pytest.raises(OptionError, match="no run 'x'"):
        find_run("x")


def test_active_runs_of_this_kernel_are_selected_first(runs, stage):
    own = stage(1, id="20260101-000000-aaaa")
    others = stage(1, id="20260102-000000-bbbb", pid=1, create_time=-1.0)
    over = stage(1, id="20260103-000000-cccc")
    for staged in (own, others, over):
        staged.start()
    over.finish()
    assert select_run().id == own.run.id
    assert select_run("20260103").id == over.run.id
    own.finish()
    assert select_run().id == others.run.id
    others.finish()
    assert select_run().id == over.run.id


def test_an_active_run_cannot_be_deleted(stage):
    staged = stage(1)
    staged.start()
    with pytest.raises(OptionError, match="is still running"):
        staged.run.delete()
    staged.launcher.emit(Ended, ending="finished")
    with pytest.raises(
        OptionError, match=f"not in its notebook yet.\nTry: %mgpu attach {staged.run.id}"
    ):
        staged.run.delete()
    (staged.run.folder / "collected").touch()
    staged.run.delete()
    assert not staged.run.folder.exists()


def test_a_run_whose_kernel_has_died_can_be_deleted(stage):
    staged = stage(1, create_time=1.0)
    staged.end("failed")
    staged.run.delete()
    assert not staged.run.folder.exists()


def test_the_digest_of_a_run_can_be_computed_after_its_folder_was_removed(stage):
    staged = stage(1)
    staged.start()
    staged.fail(0, message="the real cause")
    staged.end("failed")
    run = staged.polled()
    shutil.rmtree(run.folder)
    assert "the real cause" in write_digest(run).failure


def test_a_reused_pid_is_not_the_same_process(stage):
    own = stage(1).run.record
    assert process_is_alive(os.getpid(), own.kernel.create_time)
    assert not process_is_alive(os.getpid(), own.kernel.create_time - 100)


def fail(writer, message, kind="ValueError"):
    writer.emit(Failure, type=kind, message=message, line=1, traceback=[])
    time.sleep(0.002)


def test_the_earliest_failure_is_the_cause(stage):
    staged = stage(2)
    fail(staged.ranks[1], "the cause")
    fail(staged.ranks[0], "Connection closed by peer", "RuntimeError")
    staged.run.refresh()
    assert staged.run.view.failure.message == "the cause"


def test_of_equal_exceptions_that_of_rank_0_is_shown(stage):
    staged = stage(2)
    fail(staged.ranks[1], "same")
    fail(staged.ranks[0], "same")
    staged.run.refresh()
    assert staged.run.view.failure.rank == 0


def test_a_signal_sent_by_the_launcher_is_not_the_cause(stage):
    staged = stage(2)
    staged.launcher.emit(Exited, of_rank=1, code=-9, terminating=True)
    staged.run.refresh()
    assert staged.run.view.killed == []
    staged.launcher.emit(Exited, of_rank=0, code=-9, terminating=False)
    staged.run.refresh()
    assert staged.run.view.killed == [0]


def test_a_notice_of_several_ranks_is_shown_once(stage):
    staged = stage(2)
    for rank in staged.ranks:
        rank.emit(Notice, topic="dropout", text="text")
    staged.run.refresh()
    assert list(staged.run.view.notices) == ["dropout"]


def test_a_run_is_found_by_its_name(stage):
    first, second, third = stage(), stage(), stage()
    first.run.label(name="baseline")
    second.run.label(name="baseline")
    assert find_run("baseline").id == second.run.id, "the newest"
    third.run.label(name=first.run.id[:8])
    assert find_run(first.run.id).id == first.run.id, "ids come first"
    with pytest.raises(OptionError, match="There is no run 'base'"):
        find_run("base")


def test_run_ids_sort_by_time_within_a_second():
    names = []
    for _ in range(20):
        names.append(new_run_id())
        time.sleep(0.002)
    assert names == sorted(names)


def test_run_ids_sort_by_time_across_time_zones(monkeypatch):
    names = []
    with monkeypatch.context() as patch:
        for zone in ("XYZ-5", "XYZ+7", "UTC"):
            patch.setenv("TZ", zone)
            time.tzset()
            names.append(new_run_id())
            time.sleep(0.002)
    time.tzset()
    assert names == sorted(names)


def test_checking_an_active_run_queries_the_process_table_once(monkeypatch):
    namespace = {"__name__": "__main__"}
    run = nbmgpu.run("import time; time.sleep(100)", namespace, gpus=1, background=True)
    execution, queries = executor._background[run.id], []
    while run.view.launcher is None:
        run.refresh()
    module = sys.modules["nbmgpu.engines.local.engine"]
    monkeypatch.setattr(
        module, "process_is_alive", lambda *who: queries.append(who) or process_is_alive(*who)
    )
    over, times = execution.over, len(queries)
    run.stop(force=True)
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)
    assert (over, times) == (False, 1)


def test_non_string_entries_of_sys_path_are_ignored(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    namespace = {"__name__": "__main__"}
    nbmgpu.run("import sys\nseen = all(type(p) is str for p in sys.path)", namespace, gpus=1)
    assert namespace["seen"]


def test_numpy_values_can_be_displayed_as_json():
    cell = """
import numpy as np
from IPython.display import JSON, display
display(JSON({"accuracy": np.float32(0.5), "counts": np.arange(2)}))
"""
    run = nbmgpu.run(cell, {"__name__": "__main__"}, gpus=1)
    events = find_run(run.id).poll()
    shown = [event.data for event in events if isinstance(event, Display)]
    assert shown[0]["application/json"] == {"accuracy": 0.5, "counts": [0, 1]}


def test_a_value_that_ranks_cannot_unpickle_is_named():
    namespace = {"__name__": "__main__"}
    source = """
class Wrapper:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return getattr(self.inner, name)
w = Wrapper(3)
"""
    exec(source, namespace)
    with pytest.raises(SerializationError, match="`w` cannot be unpickled in the ranks") as caught:
        nbmgpu.run("print(w.real)", namespace, gpus=1)
    assert "Try: make `w` inside the cell" in str(caught.value)


@pytest.mark.parametrize("chosen", ["runs", "./runs"])
def test_the_folder_of_all_runs_is_the_same_for_every_process(chosen, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", chosen)
    with pytest.raises(OptionError, match="is a relative path"):
        runs_root()


def test_the_folder_of_all_runs_may_be_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NBMGPU_RUNS", "~/runs")
    assert runs_root() == tmp_path / "runs"


def test_a_kernel_with_the_same_pid_may_be_another_process():
    (own, host) = (own_process(), socket.gethostname())
    kernel = KernelRecord(**own, cwd="", sys_path=[], host=host)
    assert kernel.is_this_process
    assert not dataclasses.replace(kernel, host="elsewhere").is_this_process
    assert not dataclasses.replace(kernel, create_time=own["create_time"] - 60).is_this_process


def test_options_of_a_report_are_refused(stage, tmp_path):
    staged = stage(1)
    with pytest.raises(OptionError, match="strategy, with_nbmgpu would change it"):
        nbmgpu.export(
            staged.run, tmp_path / "a.html", report=True, strategy="ddp", with_nbmgpu=True
        )
