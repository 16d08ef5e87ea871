"""The picker without a kernel, through the server."""

from nbmgpu.strategies import strategy_names


def test_the_picker_works_without_a_kernel(runs):
    body = {"line": "%%mgpu --strategy zero1", "controls": {"gpus": 2, "accumulate": 4}}
    state = runs.request("pick", "POST", body).json
    assert state["selected"] == "zero1"
    assert state["controls"]["accumulate"] == 4
    assert {row["name"] for row in state["advice"]["rows"]} >= {"ddp", "zero1", "fsdp"}
    assert {row["name"].split()[0] for row in state["advice"]["rows"]} <= set(strategy_names())
    lines = {row["name"]: row["line"] for row in state["advice"]["rows"]}
    assert lines["zero1"] == "%%mgpu --strategy zero1 --gpus 2 --accumulate 4"


def test_an_empty_request_is_valid(runs):
    assert runs.request("pick", "POST", {}).json["advice"]["line"].startswith("%%mgpu ")


def test_invalid_bodies_are_rejected(runs):
    for body in ([], {"line": 3}, {"controls": "two"}, {"other": 1}):
        answer = runs.request("pick", "POST", body)
        assert answer.status == 400
        assert answer.json["message"] == "The body is not a PickRequest."
        assert "controls" in answer.json["hint"]


def test_invalid_options_are_reported_by_the_picker(runs):
    state = runs.request("pick", "POST", {"controls": {"gpus": "some"}}).json
    assert state["advice"] is None
    assert "'some' does not name GPUs" in state["problem"]
