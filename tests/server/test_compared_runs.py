"""The routes of comparisons and labels."""

import pytest
from jupyter_server_process import REPOSITORY
from test_run_list import ids, play

from nbmgpu.report.run_comparison import MAX_RUNS


def test_runs_are_compared_in_the_requested_order(runs, stage):
    first, second = play(stage, 1), play(stage, 2)
    answer = runs.request(f"compare?runs={second.id},{first.id}")
    assert answer.status == 200
    assert [run["id"] for run in answer.json["runs"]] == [second.id, first.id]
    assert [metric["name"] for metric in answer.json["metrics"]] == ["loss"]
    names = {column["name"] for column in answer.json["columns"]}
    assert {"loss", "lowest loss", "strategy", "duration"} <= names


@pytest.mark.parametrize(
    ("names", "status"),
    [
        ("", 400),
        (",".join(f"20260101-000000-{n:05d}" for n in range(33)), 400),
        ("20260101-000000-00009", 404),
        ("../../etc,20260101-000000-00009", 404),
    ],
)
def test_what_cannot_be_compared(runs, stage, names, status):
    play(stage, 1)
    answer = runs.request(f"compare?runs={names}")
    assert answer.status == status
    assert answer.json["message"]


def test_a_run_that_was_deleted_is_left_out(runs, stage):
    second = play(stage, 2)
    gone = "20260101-000000-00009"
    answer = runs.request(f"compare?runs={gone},{second.id}")
    assert answer.status == 200
    assert [run["id"] for run in answer.json["runs"]] == [second.id]
    assert answer.json["missing"] == [gone]


def test_a_linked_cell_is_not_served(runs, stage, tmp_path):
    run = play(stage, 1)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (run.folder / "cell.py").unlink()
    (run.folder / "cell.py").symlink_to(secret)
    answer = runs.request(f"compare?runs={run.id}")
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(b"cell.py", b"")


def test_labels_are_replaced_and_listed(runs, stage):
    run = play(stage, 1)
    labels = {"name": "best", "tags": ["kept"], "note": "two\nlines"}
    assert runs.request("runs").json["runs"][0]["labels"]["name"] == ""
    answer = runs.request(f"runs/{run.id}/labels", "PUT", labels)
    assert (answer.status, answer.json) == (200, labels)
    listed = runs.request("runs")
    assert ids(listed) == [run.id]
    assert listed.json["runs"][0]["labels"] == labels


@pytest.mark.parametrize(
    "body", [{"name": 1}, {"tags": "ab"}, {"other": ""}, {"tags": [1]}, {"name": "a\nb"}, []]
)
def test_wrong_labels_are_refused(runs, stage, body):
    run = play(stage, 1)
    answer = runs.request(f"runs/{run.id}/labels", "PUT", body)
    assert answer.status == 400
    assert answer.json["message"].endswith(".")
    assert not (run.folder / "labels.json").exists()


def test_the_sidebar_offers_as_many_runs_as_can_be_compared():
    tools = REPOSITORY / "labextension" / "src" / "lab" / "sidebar" / "tools.ts"
    assert f"MAX_COMPARED = {MAX_RUNS};" in tools.read_text()
