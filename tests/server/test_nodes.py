"""Runs on several machines: rows of nodes, and of the ranks on some of them."""

import pytest

NAME = "20260101-120000-aaa"


@pytest.fixture
def staged(stage):
    run = stage(8, id=NAME, nodes=4, devices=["cuda:0", "cuda:1"] * 4)
    run.start()
    return run


def test_a_run_has_a_row_per_node(runs, staged):
    staged.fail(5)
    parts = runs.request(f"runs/{NAME}").json
    assert parts["ranks"] == []
    assert [row["first"] for row in parts["nodes"]] == [0, 2, 4, 6]
    assert [row["tone"] for row in parts["nodes"]] == ["busy", "busy", "bad", "busy"]


@pytest.mark.parametrize(
    ("query", "ranks"),
    [("nodes=0", [0, 1]), ("nodes=1,3", [2, 3, 6, 7]), ("nodes=", []), ("nodes=7,-1", [])],
)
def test_ranks_are_those_of_the_requested_nodes(runs, staged, query, ranks):
    answer = runs.request(f"runs/{NAME}/ranks?{query}").json
    assert [row["rank"] for row in answer] == ranks


def test_a_bad_list_of_nodes_is_refused(runs, staged):
    refused = runs.request(f"runs/{NAME}/ranks?nodes=a")
    assert refused.status == 400
    assert refused.json == {"message": "nodes='a' is not a list of numbers.", "hint": "nodes=0,3"}


def test_the_list_names_each_device_once(runs, staged):
    (line,) = runs.request("runs").json["runs"]
    assert line["headline"] == "ddp on 8 ranks of 4 nodes (cuda:0-1)"


def test_a_run_of_the_same_name_is_read_anew(runs, stage, staged):
    assert len(runs.request(f"runs/{NAME}").json["nodes"]) == 4
    staged.run.folder.rename(runs.runs / "elsewhere")
    stage(2, id=NAME)
    assert runs.request(f"runs/{NAME}").json["about"]["world_size"] == 2
