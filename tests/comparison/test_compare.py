"""Comparisons with real runs: measurements, side effects and output."""

from __future__ import annotations

import csv
import io
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from cells import SETUP, TRAIN, notebook, trained

import nbmgpu
from nbmgpu.comparison import Comparison
from nbmgpu.comparison.request import parse
from nbmgpu.errors import OptionError, UnknownNameError
from nbmgpu.options.run_options import RunOptions

DIFFERS = """\
import torch.distributed as dist
if dist.get_world_size() > 1:
    raise ValueError("several ranks")
""" + TRAIN  # fmt: skip
DROPOUT = TRAIN.replace("model(x)", "F.dropout(model(x), 0.5)")
WRONG = TRAIN.replace(
    "        loss.backward()\n",
    "        loss.backward()\n"
    "        if torch.distributed.get_world_size() > 1:\n"
    "            for p in model.parameters():\n"
    "                p.grad.mul_(-1)\n",
)


@pytest.fixture(scope="module")
def compared():
    """A comparison of three strategies, and its notebook."""
    shared = notebook()
    random.seed(5)
    np.random.seed(5)
    before = state_of(shared)
    comparison = nbmgpu.compare(
        TRAIN, shared, strategies=("ddp", "fsdp"), gpus=2, cpu=True, steps=9
    )
    return shared, before, comparison


def state_of(namespace):
    """Return the state that a comparison must not change."""
    return {
        "names": sorted(namespace),
        "ids": {name: id(value) for name, value in namespace.items()},
        "weights": [p.detach().clone() for p in namespace["model"].parameters()],
        "gradients": [p.grad for p in namespace["model"].parameters()],
        "states": dict(namespace["optimizer"].state),
        "losses": list(namespace["losses"]),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1],
    }


def with_faster_ranks(comparison: Comparison) -> Comparison:
    """Return the comparison as if two ranks were faster than one device."""
    rows = [row if row.is_baseline else replace(row, speed_up=1.5) for row in comparison.rows]
    return replace(comparison, rows=tuple(rows))


def test_the_notebook_is_unchanged(compared):
    shared, before, _ = compared
    after = state_of(shared)
    for part in ("weights",):
        assert all(map(torch.equal, before[part], after[part]))
    assert torch.equal(before["torch"], after["torch"])
    assert np.array_equal(before["numpy"], after["numpy"])
    for part in ("names", "ids", "gradients", "states", "losses", "python"):
        assert before[part] == after[part], part


def test_all_runs_take_the_same_steps_and_reach_the_same_loss(compared):
    _, _, comparison = compared
    assert [row.name for row in comparison.rows] == ["one device", "ddp", "fsdp"]
    assert [row.ranks for row in comparison.rows] == [1, 2, 2]
    last = trained(9)["losses"][-1]
    for row in comparison.rows:
        assert (row.state, row.reason) == ("finished", "")
        assert (row.timing.steps, row.timing.warm_up) == (9, 2)
        assert row.loss.value == pytest.approx(last, rel=1e-5)
        assert row.loss.agrees
        assert row.loss.difference == pytest.approx(0, abs=1e-5)
        assert 0 < row.timing.step_time < 60
        assert row.timing.samples_per_second > 0
        assert row.efficiency == pytest.approx(row.speed_up / row.ranks)
        assert row.launch.sent > 42 * 16 * 4
        assert 0 < row.launch.start_up < 60
    baseline, ddp, fsdp = comparison.rows
    gradients = sum(p.nbytes for p in notebook()["model"].parameters())
    assert baseline.timing.sent == 0
    assert gradients <= ddp.timing.sent < gradients + 1024, "gradients, and checks of the rank"
    assert 0 == baseline.timing.collectives < ddp.timing.collectives < fsdp.timing.collectives
    assert fsdp.timing.sent > ddp.timing.sent, "also the rank's shard of the parameters"
    assert (baseline.speed_up, baseline.line) == (1.0, "")
    assert ddp.speed_up == pytest.approx(
        ddp.timing.samples_per_second / baseline.timing.samples_per_second
    )
    assert fsdp.memory.held < baseline.memory.held < ddp.memory.held, (
        "half of the states; all; all and buckets"
    )


def test_the_best_row_is_the_fastest_of_several_ranks_and_its_line_is_valid(compared):
    _, _, comparison = compared
    fastest = max(comparison.rows[1:], key=lambda row: row.timing.samples_per_second)
    assert comparison.best is fastest
    assert fastest.line == f"%%mgpu --strategy {fastest.name} --gpus 2 --cpu"
    assert RunOptions.parse(fastest.line.removeprefix("%%mgpu")).command == fastest.line
    assert comparison.line == ("" if comparison.faster_on_one_device else fastest.line)
    assert nbmgpu.last_comparison.best == fastest


def test_runs_without_sharded_data_have_no_speed_up():
    cell = """
x, y = data.tensors
for _ in range(50):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
    comparison = nbmgpu.compare(cell, notebook(), strategies=("ddp",), gpus=2, cpu=True, steps=4)
    baseline, ddp = comparison.rows
    assert baseline.sharded
    assert not ddp.sharded
    assert (ddp.speed_up, ddp.efficiency) == (None, None)
    assert (comparison.best, comparison.line) == (None, "")
    assert "Ranks did not share the work" in repr(comparison)
    assert "ddp on 2: no training loader was sharded" in comparison._repr_html_()


def test_export_formats(compared):
    _, _, comparison = compared
    frame = comparison.to_frame()
    assert list(frame["name"]) == ["one device", "ddp", "fsdp"]
    assert frame["held_memory"].tolist() == [row.memory.held for row in comparison.rows]
    read = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert [row["name"] for row in read] == ["one device", "ddp", "fsdp"]
    assert float(read[1]["loss"]) == comparison.rows[1].loss.value
    comparison = with_faster_ranks(comparison)
    lines = comparison.to_markdown().splitlines()
    assert all(line.count("|") == lines[0].count("|") for line in lines[:5])
    assert lines[3].startswith("| ddp | 2 |")
    assert f"    {comparison.line}" in lines


def test_text_and_html(compared):
    comparison = with_faster_ranks(compared[-1])
    text, html = repr(comparison), comparison._repr_html_()
    for shown in (text, html):
        assert "one device" in shown
        assert comparison.line in shown
        assert "the first 2 are warm-up" in shown
        assert "CPU times do not predict GPU times" in shown
    assert "<script" not in html
    assert html.count("<svg") == 2
    assert f"data-line='{comparison.line}'" in html
    (marked,) = (line for line in text.splitlines() if line.startswith("->"))
    assert marked.split()[1] == comparison.best.name


ENCODER = """
layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Linear(2, 16), nn.TransformerEncoder(layer, 4), nn.Flatten(),
                      nn.Linear(16 * 8, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""


@pytest.mark.slow
@pytest.mark.matrix("nbmgpu/comparison", "nbmgpu/strategies")
def test_strategies_that_share_a_model_or_a_sequence_are_compared():
    names = ("tp", "pp", "hsdp", "fsdp+tp", "fsdp+pp", "sp", "cp")
    shared = notebook(SETUP + ENCODER)
    cell = TRAIN.replace("model(x)", "model(x.unflatten(1, (8, 2)))")
    comparison = nbmgpu.compare(cell, shared, strategies=names, gpus=4, cpu=True, steps=4)
    assert [row.name for row in comparison.rows[1:]] == list(names)
    for row in comparison.rows[1:]:
        assert (row.state, row.reason, row.ranks) == ("finished", "", 4)
        assert row.loss.agrees
        assert row.loss.difference == pytest.approx(0, abs=1e-4)
        assert row.sharded
        assert row.speed_up
    held = {row.name: row.memory.held for row in comparison.rows}
    assert max(held["pp"], held["fsdp+tp"], held["fsdp+pp"]) < held["hsdp"]
    assert max(held["tp"], held["hsdp"]) < held["sp"]


def test_without_sequences_sp_shares_no_work():
    comparison = nbmgpu.compare(TRAIN, notebook(), strategies="sp", gpus=2, cpu=True, steps=3)
    assert not comparison.rows[1].sharded
    assert comparison.best is None


def test_a_mesh_applies_to_the_strategies_that_have_its_dimensions():
    request = parse("compare", "-s ddp,tp,fsdp+tp,sp -g 4 --cpu --mesh dp=2,tp=2")
    lines = {e.strategy: e.line for e in request.entries if not e.is_baseline}
    assert lines["ddp"] == "%%mgpu --strategy ddp --gpus 4 --cpu"
    assert lines["sp"] == "%%mgpu --strategy sp --gpus 4 --cpu"
    assert lines["tp"].endswith("--mesh dp=2,tp=2")
    assert lines["fsdp+tp"].endswith("--mesh dp=2,tp=2")


def test_runs_of_a_comparison_are_kept(compared):
    _, _, comparison = compared
    runs = [nbmgpu.find_run(row.run) for row in comparison.rows]
    assert [run.record.options.strategy for run in runs] == ["ddp", "ddp", "fsdp"]
    assert not any(run.to_collect for run in runs)


def test_failed_and_refused_runs_have_rows():
    shared = notebook()
    comparison = nbmgpu.compare(
        DIFFERS, shared, strategies="ddp,fsdp", gpus=2, cpu=True, steps=4, precision="fp16"
    )
    baseline, ddp, fsdp = comparison.rows
    assert baseline.state == "finished"
    assert (ddp.state, ddp.timing.step_time, ddp.memory.peak) == ("failed", None, None)
    assert ddp.reason == "rank 0, line 3: ValueError: several ranks."
    assert (fsdp.state, fsdp.run, fsdp.ranks) == ("refused", "", 2)
    assert fsdp.reason.startswith("fsdp does not support --precision fp16")
    assert comparison.best is None
    assert comparison.line == ""
    for shown in (repr(comparison), comparison._repr_html_(), comparison.to_markdown()):
        assert "ValueError: several ranks" in shown
        assert "No run on several ranks finished" in shown


def test_a_run_with_a_different_loss_is_never_the_best():
    comparison = nbmgpu.compare(WRONG, notebook(), strategies="ddp", gpus=2, cpu=True, steps=6)
    (ddp,) = comparison.rows[1:]
    assert ddp.state == "finished"
    assert not ddp.loss.agrees
    assert abs(ddp.loss.difference) > 0.01
    assert comparison.best is None
    assert "its loss differs from one device's by more than rounding" in repr(comparison)


def test_a_random_loss_difference_is_explained():
    comparison = nbmgpu.compare(
        DROPOUT, notebook(), strategies="ddp", gpus=2, cpu=True, steps=4, exact="never"
    )
    (ddp,) = comparison.rows[1:]
    assert ddp.loss.agrees
    assert "draws other random numbers" in ddp.loss.explanation
    assert comparison.best is ddp
    assert "Fastest: ddp on 2 ranks" in repr(with_faster_ranks(comparison))


def test_a_cell_that_starts_again_is_measured_with_whole_batches():
    comparison = nbmgpu.compare(DROPOUT, notebook(), strategies="ddp", gpus=2, cpu=True, steps=4)
    (ddp,) = comparison.rows[1:]
    assert ddp.timing.steps == 4
    assert abs(ddp.loss.difference) < 1e-5
    assert not ddp.loss.explanation


def test_a_cell_with_too_few_steps_is_reported():
    comparison = nbmgpu.compare("x = 1", notebook(), strategies="ddp", gpus=2, cpu=True)
    (baseline,) = comparison.rows
    assert baseline.reason == "the cell took no optimizer step."
    assert "The cell takes no optimizer step: 1 run not made." in repr(comparison)
    short = TRAIN.replace("range(50)", "range(1)").replace("in loader", "in [data[:8]]")
    comparison = nbmgpu.compare(short, notebook(), strategies="none", gpus=2, cpu=True)
    assert comparison.rows[0].reason == "the cell took 1 step only, too few to time."


def test_a_failure_on_one_device_skips_other_runs():
    comparison = nbmgpu.compare("1 / 0", notebook(), strategies="ddp,fsdp", gpus=2, cpu=True)
    assert [row.state for row in comparison.rows] == ["failed"]
    assert "The cell fails on one device: 2 runs not made." in repr(comparison)


def test_a_run_that_exceeds_the_timeout_is_ended():
    slow = "import time, torch.distributed as dist\ntime.sleep(60 * (dist.get_world_size() > 1))\n"
    comparison = nbmgpu.compare(
        slow + TRAIN, notebook(), strategies="ddp", gpus=2, cpu=True, steps=3, timeout=8
    )
    assert [row.state for row in comparison.rows] == ["finished", "timeout"]
    assert comparison.rows[1].reason == "longer than 8 s."


def test_scale_compares_numbers_of_ranks():
    comparison = nbmgpu.scale(TRAIN, notebook(), gpus=(1, 2, 3, 99), cpu=True, steps=5)
    assert [row.ranks for row in comparison.rows] == [1, 2, 3, 99]
    assert [row.name for row in comparison.rows] == ["one device", "ddp", "ddp", "ddp"]
    assert all(row.loss.agrees for row in comparison.rows[:3])
    assert comparison.rows[3].state == "refused"
    assert "99 CPU ranks are too many" in comparison.rows[3].reason
    html = comparison._repr_html_()
    assert "speed-up by ranks" in html
    assert html.count("<circle") == 3


def test_invalid_cells_are_rejected_before_any_run():
    last = nbmgpu.last_comparison
    with pytest.raises(UnknownNameError, match="nowhere"):
        nbmgpu.compare("print(nowhere)", notebook(), strategies="ddp", cpu=True)
    with pytest.raises(SyntaxError):
        nbmgpu.compare("for", notebook(SETUP), strategies="ddp", cpu=True)
    assert nbmgpu.last_comparison is last


def test_invalid_flags_suggest_a_valid_line():
    with pytest.raises(OptionError) as refused:
        parse("compare", "--strategy fdsp --steps 1 --pull model")
    lines = str(refused.value).splitlines()
    assert "There is no flag --strategy." in lines
    assert "%%mgpu compare does not accept --pull." in lines
    assert "A comparison needs at least 2 steps." in lines
    assert lines[-1].startswith("Try: %%mgpu compare --strategies fsdp")
    parse("compare", lines[-1].removeprefix("Try: %%mgpu compare"))
