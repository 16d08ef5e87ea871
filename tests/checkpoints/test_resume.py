"""A cell that has failed goes on at its checkpoint, with the numbers of an unbroken run."""

from __future__ import annotations

import textwrap

import pytest
import torch
from checkpoints_cells import CELLS
from interrupted import LOOP, assert_same_curve, notebook, run_both, run_until_it_fails, weights
from matrix_selection import sampled
from torch import nn

import nbmgpu
from nbmgpu.errors import OptionError, ResumeError
from nbmgpu.rank.checkpoints.references import find_references
from nbmgpu.runs.checkpoint_state import loads

EXACT = 1e-6
"""Rounding: some losses are summed in another order than by the unbroken run."""

STRATEGIES = (
    "ddp", "zero1", "fsdp", "pp", "deepspeed_stage_2",
    "none", "zero2", "tp", "deepspeed_stage_1", "deepspeed_stage_3",
)  # fmt: skip

DROPOUT = "model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 4))\n" + (
    "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
)


@pytest.mark.parametrize("name", sampled([(name,) for name in CELLS], 4, "nbmgpu/rank/checkpoints"))
def test_cells(name: str) -> None:
    cell, cells, options = CELLS[name]
    both = run_both(textwrap.dedent(cell), textwrap.dedent(cells), **options)
    assert both.difference() <= EXACT
    assert both.resumed["history"] == both.unbroken["history"]
    assert "resumed" in both.resuming.view.notices
    assert_same_curve(both.resuming, both.whole)


@pytest.mark.parametrize(
    "strategy", sampled([(each,) for each in STRATEGIES], 3, "nbmgpu/strategies")
)
def test_strategies(strategy: str) -> None:
    both = run_both(LOOP, strategy=strategy, exact="auto" if strategy == "none" else "never")
    assert both.difference() <= EXACT


def test_dropout_with_whole_batches_on_another_number_of_ranks() -> None:
    both = run_both(LOOP, DROPOUT, exact="always", resume_with={"gpus": 3})
    assert both.difference() <= EXACT


def test_another_strategy() -> None:
    both = run_both(LOOP, strategy="fsdp", resume_with={"strategy": "zero1"})
    assert both.difference() <= EXACT


def test_no_rank_writes_all_of_a_sharded_model() -> None:
    """The cell holds tensors that rank 0 alone cannot gather."""
    cell = "held = [p.data for p in model.parameters()], model.state_dict()\n" + LOOP
    both = run_both(cell, strategy="fsdp")
    assert both.difference() <= EXACT
    folder = both.failed.checkpoint().folder
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.distcp"))]
    assert len(sizes) == 2
    assert max(sizes) < 0.7 * sum(sizes)
    assert (folder / "states").stat().st_size < 4096  # of 15 KiB of tensors
    held = both.resumed["held"][1]["0.weight"]
    assert torch.equal(held, both.resumed["model"].state_dict()["0.weight"])


def test_no_rank_gets_the_optimizer_states_of_others() -> None:
    """Under zero1, rank 0 has those of one of four parameters, also after a checkpoint."""
    cell = LOOP.replace("step(x, y)", "held.append(len(dict.keys(opt.state))); step(x, y)")
    namespace = notebook("held = []\n")
    options = {"gpus": 2, "cpu": True, "exact": "never", "strategy": "zero1"}
    nbmgpu.run(cell, namespace, checkpoint_every="3steps", **options)
    assert namespace["held"] == [0] + [1] * 38
    (*_, last) = nbmgpu.last_run.checkpoints
    assert len(list(last.folder.glob("*.distcp"))) == 2
    assert len(last.states["opt"]["state"]) == 4


def test_states_that_the_cell_holds_are_in_the_checkpoint_as_they_are_now() -> None:
    """On one device, steps change what an earlier `state_dict()` has returned."""
    cell = LOOP.replace("step(x, y)", "step(x, y); held = held or opt.state_dict()")
    options = {"gpus": 2, "cpu": True, "exact": "never", "strategy": "zero1"}
    namespace = notebook("held = None\n")
    nbmgpu.run(cell, namespace, checkpoint_every="5steps", **options)
    (*_, last) = nbmgpu.last_run.checkpoints
    tensors = last.map_tensors(last.description.tensors.total)
    objects = find_references({"meter": namespace["meter"]})
    held = loads(last.read("values"), tensors, objects.get)["held"]["state"]
    for number, state in last.states["opt"]["state"].items():
        assert torch.equal(held[number]["exp_avg"], state["exp_avg"])


def test_checkpoints_of_epochs_are_shown(capsys) -> None:
    both = run_both(LOOP, every="epoch")
    (*_, last) = both.failed.checkpoints
    assert last.step == 26
    assert "Checkpoint after step 26" in capsys.readouterr().out
    assert "Resumed after step 26" in both.resuming.view.notices["resumed"].text


def test_constants_of_the_notebook_may_change() -> None:
    cell = LOOP.replace("range(3)", "range(EPOCHS)")
    run_until_it_fails(cell, notebook("EPOCHS = 3", 30), checkpoint_every="7steps")
    resumed = notebook("EPOCHS = 4")
    nbmgpu.run(cell, resumed, resume=True, gpus=2, cpu=True)
    assert len(resumed["meter"].values) == 52


def test_tensors_that_the_cell_only_reads_are_left_out() -> None:
    """A table that it changes in place is in the checkpoint."""
    cell = LOOP.replace("step(x, y)", "step(x, y); counts[i] += 1; x + data[0, 0]")
    cells = "counts, data = torch.zeros(300), torch.zeros(100, 1000)\n"
    both = run_both(cell, cells)
    assert both.resumed["counts"].tolist() == both.unbroken["counts"].tolist()
    folder = both.failed.checkpoint().folder
    assert sum(path.stat().st_size for path in folder.iterdir()) < 400_000


def test_tensors_that_change_without_a_new_version_are_in_the_checkpoint() -> None:
    """Neither `.data` nor the running statistics of F.batch_norm count as a change in place."""
    cell = LOOP.replace(
        "step(x, y)",
        "step(x, y); counts.data[i] += 1; F.batch_norm(x, mean, var, training=True, momentum=0.1)",
    )
    cells = "counts, mean, var = torch.zeros(300), torch.zeros(16), torch.ones(16)\n"
    both = run_both(cell, cells, strategy="none", exact="auto")
    for name in ("counts", "mean", "var"):
        assert torch.equal(both.resumed[name], both.unbroken[name]), name


def test_the_newest_checkpoints_are_kept_and_load_into_a_plain_model() -> None:
    options = {"checkpoint_every": "3steps", "keep": 2, "strategy": "fsdp"}
    run = run_until_it_fails(LOOP, notebook(fail_at=20), **options)
    assert [each.step for each in run.checkpoints] == [15, 18]
    fresh = notebook()
    before = weights(fresh)
    run.checkpoint(-1).load(fresh["model"])
    assert float((weights(fresh) - before).abs().max()) > 1e-3
    assert set(run.checkpoint(0).states) == {"model", "opt"}
    with pytest.raises(OptionError, match="2 checkpoints"):
        run.checkpoint(5)
    with pytest.raises(OptionError, match="No model"):
        run.checkpoint(0).load(nn.Linear(3, 3))


class TestErrors:
    def test_another_cell(self) -> None:
        failed = run_until_it_fails(LOOP, notebook(fail_at=10), checkpoint_every="5steps").id
        with pytest.raises(OptionError, match="No run of this cell"):
            nbmgpu.run(LOOP + "pass", notebook(), resume=True, gpus=2, cpu=True)
        with pytest.raises(OptionError, match="another cell"):
            nbmgpu.run(LOOP + "pass", notebook(), resume=failed, gpus=2, cpu=True)

    def test_another_model(self) -> None:
        cell = LOOP + "\n"
        run_until_it_fails(cell, notebook(fail_at=10), checkpoint_every="5steps")
        other = notebook("model = nn.Linear(16, 4); opt = torch.optim.Adam(model.parameters())")
        with pytest.raises(ResumeError, match=r"does not fit[\s\S]*has changed since"):
            nbmgpu.run(cell, other, resume=True, gpus=2, cpu=True)
