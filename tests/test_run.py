"""A run is a folder: what can be read from it, and by whom."""

import os
import shutil
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
from nbmgpu.runs.folder import new_run_id
from nbmgpu.runs.run import Run, find_run, list_runs
from nbmgpu.system.processes import process_is_alive


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


def test_only_the_owner_can_read_a_run(stage):
    staged = stage(1)
    assert stat.S_IMODE(staged.run.folder.stat().st_mode) == 0o700


def test_a_second_reader_sees_the_same(stage):
    staged = stage(2)
    staged.start()
    staged.points("loss", [1, 2], [2.0, 4.0], rank=0, weight=1.0)
    staged.points("loss", [1, 2], [4.0, 8.0], rank=1, weight=3.0)
    other = Run(staged.run.folder)
    assert other.state == "running"
    assert other.metrics["loss"].tolist() == [3.5, 7.0]
    assert other.cell == staged.run.cell


def test_looking_at_the_state_takes_no_event_from_the_watcher(stage):
    staged = stage(1)
    staged.start()
    assert staged.run.state == "running"
    assert staged.run.metrics.empty
    kinds = [event.kind for event in staged.run.poll()]
    assert kinds.count("started") == 2
    assert staged.run.poll() == []


def test_a_run_whose_launcher_is_gone_is_lost(stage):
    staged = stage(1)
    staged.launcher.emit(Started, pid=os.getpid(), create_time=1.0)
    assert staged.run.state == "lost"
    assert staged.run.over


def test_a_run_whose_kernel_is_gone_before_the_launcher_came_is_lost(stage):
    staged = stage(1, kernel_create_time=1.0)
    assert staged.run.state == "lost"


def test_a_list_of_runs_reads_no_events_of_those_that_are_over(stage):
    staged = stage(1)
    staged.start()
    assert line_of(Run(staged.run.folder)).state == "running"
    staged.launcher.emit(Ended, ending="finished")
    assert line_of(Run(staged.run.folder)).state == "finished"
    again = Run(staged.run.folder)
    assert line_of(again).state == "finished"
    assert again.view.ended is None
    staged.launcher.emit(Ended, ending="failed")  # nothing is kept for longer than it is true
    assert line_of(again).state == "failed"


def test_stop_is_a_file(stage):
    staged = stage(1)
    staged.run.stop()
    assert (staged.run.folder / "stop").read_text() == "stop"
    staged.run.stop(force=True)
    assert (staged.run.folder / "stop").read_text() == "force"
    staged.run.stop()
    assert (staged.run.folder / "stop").read_text() == "force", "nothing takes it back"


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


def test_the_run_that_is_meant_goes_on_and_is_this_kernels(runs, stage):
    own = stage(1, id="20260101-000000-aaaa")
    others = stage(1, id="20260102-000000-bbbb", kernel_pid=1, kernel_create_time=-1.0)
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


def test_a_run_that_goes_on_cannot_be_deleted(stage):
    staged = stage(1)
    staged.start()
    with pytest.raises(OptionError, match="still goes on"):
        staged.run.delete()
    staged.launcher.emit(Ended, ending="finished")
    with pytest.raises(
        OptionError, match=f"not in its notebook yet.\nTry: %mgpu attach {staged.run.id}"
    ):
        staged.run.delete()
    (staged.run.folder / "collected").touch()
    staged.run.delete()
    assert not staged.run.folder.exists()


def test_a_run_whose_kernel_is_gone_can_be_deleted(stage):
    staged = stage(1, kernel_create_time=1.0)
    staged.end("failed")
    staged.run.delete()
    assert not staged.run.folder.exists()


def test_the_line_of_a_run_whose_folder_is_gone_is_no_error(stage):
    staged = stage(1)
    staged.start()
    staged.fail(0, message="the real cause")
    staged.end("failed")
    run = staged.polled()
    shutil.rmtree(run.folder)
    assert "the real cause" in write_digest(run).failure


def test_a_reused_pid_is_not_the_same_process(stage):
    own = stage(1).run.record
    assert process_is_alive(os.getpid(), own.kernel_create_time)
    assert not process_is_alive(os.getpid(), own.kernel_create_time - 100)


def fail(writer, message, kind="ValueError"):
    writer.emit(Failure, type=kind, message=message, line=1, traceback=[])
    time.sleep(0.002)


def test_the_earliest_failure_is_the_cause(stage):
    staged = stage(2)
    fail(staged.ranks[1], "the cause")
    fail(staged.ranks[0], "Connection closed by peer", "RuntimeError")
    staged.run.refresh()
    assert staged.run.view.failure.message == "the cause"


def test_of_the_same_exception_rank_0s_is_shown(stage):
    staged = stage(2)
    fail(staged.ranks[1], "same")
    fail(staged.ranks[0], "same")
    staged.run.refresh()
    assert staged.run.view.failure.rank == 0


def test_a_signal_that_the_launcher_sent_is_no_cause(stage):
    staged = stage(2)
    staged.launcher.emit(Exited, of_rank=1, code=-9, asked=True)
    staged.run.refresh()
    assert staged.run.view.killed == []
    staged.launcher.emit(Exited, of_rank=0, code=-9, asked=False)
    staged.run.refresh()
    assert staged.run.view.killed == [0]


def test_a_notice_is_shown_once_whatever_the_number_of_ranks(stage):
    staged = stage(2)
    for rank in staged.ranks:
        rank.emit(Notice, topic="dropout", text="said")
    staged.run.refresh()
    assert list(staged.run.view.notices) == ["dropout"]


def test_names_of_runs_sort_by_time_within_a_second():
    names = []
    for _ in range(20):
        names.append(new_run_id())
        time.sleep(0.002)
    assert names == sorted(names)


def test_the_newest_run_is_the_last_whatever_the_time_zone(monkeypatch):
    names = []
    with monkeypatch.context() as patch:
        for zone in ("XYZ-5", "XYZ+7", "UTC"):
            patch.setenv("TZ", zone)
            time.tzset()
            names.append(new_run_id())
            time.sleep(0.002)
    time.tzset()
    assert names == sorted(names)


def test_a_look_at_a_run_that_goes_on_asks_the_system_once(monkeypatch):
    namespace = {"__name__": "__main__"}
    run = nbmgpu.run("import time; time.sleep(100)", namespace, gpus=1, background=True)
    execution, asked = executor._background[run.id], []
    while run.view.launcher is None:
        run.refresh()
    module = sys.modules["nbmgpu.engines.local.engine"]
    monkeypatch.setattr(
        module, "process_is_alive", lambda *who: asked.append(who) or process_is_alive(*who)
    )
    over, times = execution.over, len(asked)
    run.stop(force=True)
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)
    assert (over, times) == (False, 1)


def test_a_path_that_python_ignores_in_sys_path_is_ignored(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    namespace = {"__name__": "__main__"}
    nbmgpu.run("import sys\nseen = all(type(p) is str for p in sys.path)", namespace, gpus=1)
    assert namespace["seen"]


def test_numbers_of_numpy_can_be_shown_as_json():
    cell = """
import numpy as np
from IPython.display import JSON, display
display(JSON({"accuracy": np.float32(0.5), "counts": np.arange(2)}))
"""
    run = nbmgpu.run(cell, {"__name__": "__main__"}, gpus=1)
    events = find_run(run.id).poll()
    shown = [event.data for event in events if isinstance(event, Display)]
    assert shown[0]["application/json"] == {"accuracy": 0.5, "counts": [0, 1]}


def test_what_cannot_be_made_again_is_named():
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
