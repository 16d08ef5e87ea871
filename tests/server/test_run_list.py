"""The list of runs: its entries, its speed for two hundred runs, and problems."""

import json
import shutil
import threading
import time

import psutil
import pytest

import nbmgpu.server.run_list as run_list_module
from nbmgpu.report.digest import DIGEST_FILE
from nbmgpu.report.run_line import POINTS
from nbmgpu.runs.run import Run
from nbmgpu.server.run_list import RunListReader


def name_of(number):
    return f"20260101-{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}-{number:05d}"


def play(stage, number, steps=100):
    """Create a finished run of some steps."""
    staged = stage(2, id=name_of(number), notebook="books/train.ipynb", bundle="")
    staged.start()
    for first in range(0, steps, 10):
        for rank in range(2):
            taken = list(range(first, first + 10))
            staged.points("loss", taken, [1 / (1 + step) for step in taken], rank=rank)
        staged.progress(first + 10, steps)
    staged.finish()
    staged.close()
    return staged.run


def ids(answer):
    return [line["id"] for line in answer.json["runs"]]


def test_the_fields_of_an_entry(runs, stage):
    run = play(stage, 1)
    (line,) = runs.request("runs").json["runs"]
    assert line["id"] == run.id
    status = line["status"]
    assert (status["state"], status["label"], status["tone"], status["over"]) == (
        "finished", "finished", "good", True,
    )  # fmt: skip
    assert (line["strategy"], line["world_size"]) == ("ddp", 2)
    assert line["notebook"] == "books/train.ipynb"
    assert line["kernel"]["alive"] is True  # this process
    assert line["failure"] == ""
    assert line["curve"]["name"] == "loss"
    assert line["curve"]["last"] == "0.01"
    assert 2 < len(line["curve"]["points"]) <= POINTS
    assert line["curve"]["points"][0] == [0, 1]
    assert line["curve"]["points"][-1] == [99, 0.01]


def test_the_summary_is_available_when_the_run_is_over(runs, stage):
    run = play(stage, 1)
    summary = runs.request(f"runs/{run.id}/summary").json
    assert "finished" in summary["text"]
    assert "finished" in summary["html"]
    assert "<script" not in summary["html"]
    going = stage(2, id=name_of(2))
    going.start()
    refused = runs.request(f"runs/{going.run.id}/summary")
    assert (refused.status, refused.json["message"]) == (409, f"Run {name_of(2)} is still running.")


def test_a_failed_run_has_its_cause_in_a_sentence(runs, stage):
    staged = stage(2, id=name_of(1))
    staged.start()
    staged.fail(1, message="bad batch\nand more", line=2)
    staged.end("failed")
    (line,) = runs.request("runs").json["runs"]
    assert line["status"]["state"] == "failed"
    assert line["failure"] == "rank 1, line 2: ValueError: bad batch"


def test_a_run_without_a_launcher_is_lost(runs, stage):
    staged = stage(1, id=name_of(1), create_time=1.0)
    (line,) = runs.request("runs").json["runs"]
    assert (line["status"]["state"], line["kernel"]["alive"]) == ("lost", False)
    assert line["failure"].startswith("The launcher has disappeared")
    answer = runs.request(f"runs/{staged.run.id}/stop", "POST")
    assert answer.status == 409
    assert "launcher disappeared" in answer.json["message"]


def test_a_run_with_many_events_is_stopped_immediately(runs, stage):
    staged = stage(1, id=name_of(1))
    staged.start()
    for first in range(0, 300_000, 100):
        staged.points("loss", list(range(first, first + 100)), [0.5] * 100)
    process = psutil.Process(runs.process.pid)
    before = process.cpu_times().user
    assert runs.request(f"runs/{staged.run.id}/stop", "POST", {}).status == 202
    stopping = process.cpu_times().user - before
    assert runs.request(f"runs/{staged.run.id}").json["status"]["label"] == "stopping"
    reading = process.cpu_times().user - before - stopping
    assert stopping < reading / 3, (stopping, reading)


def test_nonfinite_values_are_omitted(runs, stage):
    staged = stage(1, id=name_of(1))
    staged.points("loss", [1, 2, 3], [1.0, float("nan"), float("inf")])
    (line,) = runs.request("runs").json["runs"]
    assert line["curve"]["points"] == [[1, 1]]
    assert line["curve"]["last"] == "inf"
    assert runs.request(f"runs/{staged.run.id}").json["curves"]["shown"][0]["finite"] is False


def test_the_list_is_paged_newest_first(runs, stage):
    for number in range(5):
        play(stage, number, steps=10)
    first = runs.request("runs?limit=2")
    assert (ids(first), first.json["more"]) == ([name_of(4), name_of(3)], True)
    rest = runs.request(f"runs?limit=3&before={name_of(3)}")
    assert (ids(rest), rest.json["more"]) == ([name_of(2), name_of(1), name_of(0)], False)
    refused = runs.request("runs?limit=many")
    assert refused.status == 400
    assert refused.json["message"] == "limit='many' is not an integer."


def test_two_hundred_finished_runs_are_listed_in_less_than_a_third_of_a_second(runs, stage):
    for number in range(200):
        run = play(stage, number)
        RunListReader().newest(1)  # caches the entry in the folder
        assert (run.folder / DIGEST_FILE).exists()
    process = psutil.Process(runs.process.pid)
    walls, costs = [], []
    for _ in range(3):  # the first time, nothing is cached in memory
        before, start = process.cpu_times(), time.perf_counter()
        answer = runs.request("runs")
        walls.append(time.perf_counter() - start)
        after = process.cpu_times()
        costs.append(after.user + after.system - before.user - before.system)
        assert len(ids(answer)) == 200
    assert max(costs) < 0.3, costs  # CPU time, so independent of the load
    assert min(walls) < 0.3, walls


def test_runs_that_were_never_read_are_added_gradually(runs, stage):
    """Without a cached entry: their kernels were killed, or an older version ran them."""
    for number in range(50):
        play(stage, number, steps=2000)
    start = time.perf_counter()
    first = runs.request("runs")
    assert time.perf_counter() - start < 1.5  # reading all takes some seconds
    assert 0 < len(ids(first)) < 50
    assert first.json["more"] is True
    with runs.listen("stream") as stream:
        message = []
        while len(message) < 50:
            update = json.loads(stream.recv())
            message += [line["id"] for line in update["runs"]]
            assert update["gone"] == []
    assert sorted(message) == [name_of(number) for number in range(50)]
    assert ids(runs.request("runs")) == sorted(message, reverse=True)


def test_finished_runs_are_read_once(runs, stage, monkeypatch):
    for number in range(3):
        play(stage, number)
    opened = []

    class Counting(Run):
        def __init__(self, folder, ranks=True):
            opened.append(folder.name)
            super().__init__(folder, ranks)

    monkeypatch.setattr("nbmgpu.server.run_folders.Run", Counting)
    known = RunListReader()
    first = known.newest()
    assert sorted(opened) == [name_of(number) for number in range(3)]
    assert known.newest() == first
    assert RunListReader().newest() == first  # another server uses the cached entries
    assert len(opened) == 3


def test_an_entry_is_recomputed_after_new_events(runs, stage):
    staged = stage(1, id=name_of(1))
    staged.start()
    staged.fail(0, message="first")
    staged.end("failed")
    known = RunListReader()
    assert known.newest().runs[0].failure.endswith("first")
    staged.points("loss", [1], [0.5])
    assert known.newest().runs[0].curve.name == "loss"
    assert RunListReader().newest().runs[0].curve.name == "loss"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seen": 1}', '{"seen": [], "line": {}}'])
def test_an_unreadable_digest_is_recomputed(runs, stage, content):
    run = play(stage, 1)
    line = RunListReader().newest().runs[0]
    good = (run.folder / DIGEST_FILE).read_text()
    (run.folder / DIGEST_FILE).write_text(content)
    assert RunListReader().newest().runs == [line]
    assert (run.folder / DIGEST_FILE).read_text() == good


def test_a_damaged_folder_does_not_hide_others(runs, stage):
    play(stage, 1)
    broken = play(stage, 2)
    (broken.folder / "events" / "rank-1.jsonl").unlink(missing_ok=True)
    (broken.folder / "events" / "rank-1.jsonl").mkdir()  # lines that make no sense are skipped
    assert ids(runs.request("runs")) == [name_of(1)]
    answer = runs.request(f"runs/{broken.id}")
    assert answer.status == 500
    assert "Is a directory" in answer.json["message"]
    assert ids(runs.request("runs")) == [name_of(1)]
    assert runs.log.read_text().count(f"Run {broken.id} cannot be read") == 1


def test_the_cache_is_limited(runs, stage, monkeypatch):
    monkeypatch.setattr(run_list_module, "MAX_CACHED", 3)
    for number in range(5):
        play(stage, number, steps=10)
    known = RunListReader()
    assert len(known.newest().runs) == 5
    assert len(known.newest(2).runs) == 2
    assert sorted(known._entries) == [name_of(2), name_of(3), name_of(4)]
    shutil.rmtree(runs.runs / name_of(4))
    assert [line.id for line in known.newest(2).runs] == [name_of(3), name_of(2)]
    assert name_of(4) not in known._entries


def test_running_runs_are_not_cached(runs, stage):
    staged = stage(1, id=name_of(1))
    staged.start()
    assert [line["status"]["state"] for line in runs.request("runs").json["runs"]] == ["running"]
    assert not (staged.run.folder / DIGEST_FILE).exists()


def test_a_missing_runs_folder_is_not_a_problem(runs):
    assert not runs.runs.exists()
    assert runs.request("runs").json == {"runs": [], "more": False}
    assert runs.request("status").json["problems"] == []


def test_an_unreadable_runs_folder_is_a_problem(runs):
    runs.runs.write_text("not a folder")  # root ignores permissions
    (problem,) = runs.request("status").json["problems"]
    assert problem == f"The folder of runs, {runs.runs}, cannot be read: Not a directory."
    assert runs.request("runs").status == 500
    with runs.listen("stream") as stream:
        assert json.loads(stream.recv())["problems"] == [problem]
    runs.runs.unlink()


def test_unreadable_runs_are_not_reported_as_removed(runs, stage):
    stage(1, id=name_of(1))
    with runs.listen("stream") as stream:
        assert [line["id"] for line in json.loads(stream.recv())["runs"]] == [name_of(1)]
        aside = runs.runs.rename(runs.runs.with_name("aside"))
        runs.runs.write_text("not a folder")
        message = json.loads(stream.recv())
        while not message["problems"]:
            message = json.loads(stream.recv())
        assert (message["runs"], message["gone"], message["more"]) == ([], [], False)
    runs.runs.unlink()
    aside.rename(runs.runs)


@pytest.mark.alone
def test_long_reads_do_not_block_other_requests(runs, stage):
    """The server responds to others while it reads a large run."""
    staged = stage(1, id=name_of(1))
    for first in range(0, 100_000, 100):
        staged.points("loss", list(range(first, first + 100)), [0.5] * 100)
    big = threading.Thread(target=runs.request, args=(f"runs/{name_of(1)}",))
    started = time.perf_counter()
    big.start()
    waits = []
    while big.is_alive():
        start = time.perf_counter()
        assert runs.request("/hub/user/x/api").status == 200
        waits.append(time.perf_counter() - start)
    big.join()
    took = time.perf_counter() - started
    assert len(waits) > 3, (waits, took)
    assert max(waits) < took / 2, (waits, took)
