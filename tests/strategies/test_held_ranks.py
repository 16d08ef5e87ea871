"""Ranks that are held: cells that follow have one device's numbers, and release writes all back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from held_notebook import EVALUATE, TOLERANCE, TRAIN, notebook, run
from torch import nn

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.kernel import held_ranks
from nbmgpu.options.hold_options import STRATEGIES
from nbmgpu.report.digest import line_of

pytestmark = pytest.mark.usefixtures("released")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_evaluation_and_more_training_have_the_numbers_of_one_device(
    strategy: str,
) -> None:
    expected, names = notebook(), notebook()
    for source in (TRAIN, EVALUATE, TRAIN):
        exec(source, expected)
    before = [parameter.detach().clone() for parameter in names["model"].parameters()]
    identities = [id(each) for each in (names["model"], *names["model"].parameters())]
    ranks = 4 if strategy == "hsdp" else 2
    first = run(TRAIN, names, strategy=strategy, gpus=ranks, hold=True)
    assert "`model`, `optimizer` stay in the ranks" in first.view.notices["held"].text
    assert all(map(torch.equal, before, names["model"].parameters())), "nothing is written back yet"
    evaluated = run(EVALUATE, names)
    first_pid = names["pid"]
    assert evaluated.id != first.id
    assert evaluated.record.options.strategy == strategy
    run(f"{TRAIN}\nimport os\npid = os.getpid()", names)
    assert names["pid"] == first_pid
    torch.testing.assert_close(names["losses"], expected["losses"], **TOLERANCE)
    torch.testing.assert_close(names["total"], expected["total"], **TOLERANCE)
    assert nbmgpu.release() is not None
    assert [id(each) for each in (names["model"], *names["model"].parameters())] == identities
    assert names["scheduler"].optimizer is names["optimizer"]
    for kind in ("model", "optimizer", "scheduler"):
        states = [each[kind].state_dict() for each in (names, expected)]
        torch.testing.assert_close(*(state.get("state", state) for state in states), **TOLERANCE)
    with pytest.raises(OptionError, match="No ranks are held"):
        nbmgpu.release()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_model_that_the_cell_makes_is_there_in_the_next_cell(strategy: str) -> None:
    expected, names = notebook(), notebook()
    make = (
        "torch.manual_seed(1)\nmodel = nn.Linear(6, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    ) + TRAIN.replace("scheduler.step()\n", "")
    for each in (expected, names):
        for name in ("model", "optimizer", "scheduler"):
            del each[name]
    for source in (make, EVALUATE):
        exec(source, expected)
    first = run(make, names, strategy=strategy, gpus=2, hold=True)
    assert "model" not in names
    assert "`model`, `optimizer` stay in the ranks" in first.view.notices["held"].text
    run(EVALUATE, names)
    torch.testing.assert_close(names["total"], expected["total"], **TOLERANCE)
    nbmgpu.release()
    torch.testing.assert_close(names["model"].state_dict(), expected["model"].state_dict())
    assert names["optimizer"].param_groups[0]["params"][0] is names["model"].weight


def test_names_of_earlier_cells_are_the_notebooks() -> None:
    names = {"n": 1}
    run("made = [n]", names, strategy="none", gpus=2, hold=True)
    names["made"].append(5)
    run("seen = list(made); other = 2", names)
    assert names["seen"] == [1, 5]
    assert names["made"] == [1, 5], "the ranks' own list is not what the notebook has"
    names["made"] = "new"
    run("other = 3", names)
    assert names == names | {"made": "new", "other": 3}


def test_random_numbers_are_those_of_the_notebook() -> None:
    names, expected = notebook(), notebook()
    for each in (names, expected):
        torch.manual_seed(5)
        for at, source in enumerate((TRAIN, "drawn = torch.rand(3)")):
            if each is expected:
                exec(source, each)
            else:
                run(source, each, **({} if at else {"hold": True, "gpus": 2}))
    torch.testing.assert_close(names["drawn"], expected["drawn"], rtol=0, atol=0)


def test_discard_ends_the_ranks_and_leaves_the_notebook_as_it_was() -> None:
    names = notebook()
    before = [parameter.detach().clone() for parameter in names["model"].parameters()]
    run(TRAIN, names, strategy="fsdp", gpus=2, hold=True)
    held = held_ranks.current()
    assert held is not None
    assert nbmgpu.release(discard=True) is None
    assert held.has_ended
    assert all(map(torch.equal, before, names["model"].parameters()))
    run(TRAIN, names, gpus=2)
    assert not torch.equal(before[0], next(names["model"].parameters()))


def test_options_that_contradict_those_of_the_ranks_are_refused() -> None:
    names = notebook()
    run(TRAIN, names, strategy="fsdp", gpus=2, hold=True)
    with pytest.raises(OptionError, match=r"gives --strategy, --gpus, .* held with other options"):
        run(EVALUATE, names, strategy="tp", gpus=3)
    with pytest.raises(OptionError, match="cannot have --background"):
        run(EVALUATE, names, background=True)
    run(EVALUATE, names, strategy="fsdp", gpus=2)


def test_a_model_that_the_notebook_has_changed_meanwhile_is_refused() -> None:
    names = notebook()
    run(TRAIN, names, strategy="fsdp", gpus=2, hold=True)
    with torch.no_grad():
        names["model"][0].weight.zero_()
    with pytest.raises(OptionError, match="has changed tensors of a model"):
        run(EVALUATE, names)
    nbmgpu.release(discard=True)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2", "tp"])
def test_a_cell_that_fails_within_the_model_brings_it_home(strategy: str) -> None:
    expected, names = notebook(), notebook()
    exec(TRAIN, expected)
    run(TRAIN, names, strategy=strategy, gpus=2, hold=True)
    held = held_ranks.current()
    assert held is not None
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|size"):
        run("with torch.no_grad():\n    model(torch.ones(2, 5))", names)
    assert held_ranks.current() is None
    last = nbmgpu.find_run()
    last.refresh()
    assert "have ended with this cell" in last.view.notices["held"].text
    states = [each["model"].state_dict() for each in (names, expected)]
    torch.testing.assert_close(*states, **TOLERANCE)
    assert type(names["model"][0].weight) is nn.Parameter


def test_a_cell_that_fails_on_one_rank_ends_the_ranks() -> None:
    names = notebook()
    run(TRAIN, names, strategy="ddp", gpus=2, hold=True)
    held = held_ranks.current()
    assert held is not None
    with pytest.raises(ZeroDivisionError):
        run("import os\n1 / int(os.environ['RANK'])", names)
    assert held_ranks.current() is None
    assert held.has_ended


def test_a_state_dict_of_shards_is_there_in_the_next_cell_and_comes_home() -> None:
    expected, names = notebook(), notebook()
    exec(TRAIN, expected)
    run(f"{TRAIN}\nstate = model.state_dict()", names, strategy="fsdp", gpus=2, hold=True)
    assert "state" not in names
    run("norm = sum(value.norm() for value in state.values()).item()", names)
    norm = sum(value.norm() for value in expected["model"].state_dict().values()).item()
    assert names["norm"] == pytest.approx(norm, rel=1e-5)
    nbmgpu.release()
    torch.testing.assert_close(names["state"], expected["model"].state_dict(), **TOLERANCE)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_files_logs_and_metrics_are_those_of_each_cell(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = notebook() | {"nbmgpu": nbmgpu}
    source = (
        "torch.save(model.state_dict(), 'weights.pt')\n"
        "with open('lines', 'a') as file: file.write('line\\n')\n"
        "nbmgpu.log(accuracy=0.5)\nprint('printed')"
    )
    first = run(TRAIN + source, names, strategy=strategy, gpus=2, hold=True)
    second = run(source, names)
    third = run(TRAIN + source, names)
    for each in (first, second, third):
        assert each.log() == "printed\n"
        assert each.log(1) == "printed\n"
    assert list(second.metrics.columns) == ["accuracy"]
    assert (*third.metrics["loss"].index,) == (*first.metrics["loss"].index,)
    assert (tmp_path / "lines").read_text() == "line\n" * 3, "rank 0 alone writes"
    nbmgpu.release()
    torch.testing.assert_close(torch.load(tmp_path / "weights.pt"), names["model"].state_dict())


def test_lists_of_runs_show_the_memory_and_a_held_run_is_not_deleted() -> None:
    first = run(TRAIN, notebook(), strategy="fsdp", gpus=2, hold=True)
    assert re.search(r", ranks held: [\d.]+ [MG]iB$", line_of(first).headline)
    with pytest.raises(OptionError, match="held for the next cell"):
        first.delete()
    nbmgpu.release(discard=True)
    assert "held" not in line_of(first).headline
    first.delete()


@pytest.mark.parametrize(
    "options", [{"strategy": "pp"}, {"checkpoint_every": "10m"}, {"detach": True}, {"fresh": True}]
)
def test_what_cannot_be_held_is_refused_in_words(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"held|hold"):
        run("pass", {}, hold=True, **options)
