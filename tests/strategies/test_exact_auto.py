"""``--exact auto``: a cell whose numbers would differ on shards starts again with whole batches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from idioms import notices
from idioms.comparison import Comparison, compare_whole_batches, run_both
from idioms.decisions import DECISIONS, ON_SHARDS
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.whole_batch import CELLS, LAYERS, meeting_late, model
from matrix_selection import sampled

import nbmgpu
from nbmgpu.kernel.execution import Execution
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.run_list import list_runs

EXERCISED = ("nbmgpu/rank/restart.py", "nbmgpu/strategies/exact", "tests/idioms")

WATCHED = "nbmgpu/rank/batch_dependence"

DROPOUT = model(LAYERS["dropout"])

SAME_ON_SHARDS = {
    "group norm", "instance norm", "spectral norm", "parametrized spectral norm",
    "GRU, time first", "a penalty that is the same for all samples", "bf16 autocast",
}  # fmt: skip
"""Cells without a reason to start again; they leave a rank's own batch in ``x``."""

NO_SHARDS = {
    "PPO in minibatches of a permutation", "a loop that does not train", "no loader",
    "samples instead of batches", "batches that cannot be split",
}  # fmt: skip
"""Cells whose batches are not divided in the first place."""

GROWS = {
    "a sum over a variance that is a tensor",
    "a number times the size of the batch, in a function",
    "a sum and a term over fixed points",
}
"""Cells whose weights grow without bound, and so does rounding."""

TOPICS = [
    idiom(name, cell, setup=setup, curve=False) for name, (_, cell, setup) in notices.TOPICS.items()
]


SQLITE = "import sqlite3; sqlite3.connect('file:a?mode=memory', uri=True).close()"


def auto(cell: Idiom, ranks: int = 2, **options: object) -> Comparison:
    """Compare a cell with one device, with the rounding of sums that are computed in parts."""
    return compare_whole_batches(cell, ranks, exact="auto", **options)


@pytest.mark.parametrize(
    "cell",
    sampled(
        ((c,) for c in (*CELLS, *TOPICS) if c.name not in SAME_ON_SHARDS | NO_SHARDS | GROWS),
        15, *EXERCISED,
    ),
)  # fmt: skip
def test_cells_have_the_numbers_of_one_device(cell: Idiom) -> None:
    result = auto(cell)
    result.assert_equal()
    assert "restarted" in result.run.view.notices


@pytest.mark.parametrize("cell", sampled(((c,) for c in DECISIONS), 8, *EXERCISED, WATCHED))
def test_cells_that_decide_by_a_batch(cell: Idiom) -> None:
    result = auto(cell)
    result.assert_equal()
    assert "restarted" in result.run.view.notices


def test_a_metric_covers_the_whole_batch() -> None:
    pytest.importorskip("torchmetrics")
    cell = f"{TRAIN}        metric.update(model(x), y)\nscore = metric.compute()"
    metric = "torchmetrics.classification.MulticlassAccuracy(4)"
    result = auto(idiom("metric", cell, setup=f"import torchmetrics\nmetric = {metric}"))
    result.assert_equal()
    assert "updates a metric" in result.run.view.notices["restarted"].text


FUNCTIONAL = """
from torch.func import functional_call, grad_and_value
def compute_loss(parameters, x, y):
    return F.cross_entropy(functional_call(model, parameters, (x,)), y)
for x, y in loader:
    grads, loss = grad_and_value(compute_loss)(dict(model.named_parameters()), x, y)
    for name, parameter in model.named_parameters():
        parameter.grad = grads[name].detach()
    opt.step()
    losses.append(loss.item())
"""


def test_gradients_of_torch_func() -> None:
    """No backward pass tells that the loop trains: on shards, a notice says so."""
    run_both(FUNCTIONAL, exact="always").assert_equal()
    on_shards = nbmgpu.run(FUNCTIONAL, notebook(), gpus=2, cpu=True, exact="never")
    assert "not-trained" in on_shards.view.notices


@pytest.mark.parametrize("name", ON_SHARDS)
def test_guards_stay_on_shards(name: str) -> None:
    result = run_both(ON_SHARDS[name], exact="auto")
    assert result.difference() < 1e-6
    assert not result.run.view.notices.keys() - {"devices", "rank-0-values"}


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_2"])
def test_the_strategy_may_shard_the_model(strategy: str) -> None:
    result = auto(idiom("dropout", TRAIN, setup=DROPOUT, curve=False), strategy=strategy)
    result.assert_equal()
    assert "restarted" in result.run.view.notices


@pytest.mark.parametrize("name", sorted(SAME_ON_SHARDS)[:2])
def test_cells_without_a_reason_run_on_shards(name: str) -> None:
    cell = next(cell for cell in CELLS if cell.name == name)
    run = nbmgpu.run(cell.cell, notebook(cell.setup), gpus=2, cpu=True, exact="auto")
    assert not run.view.notices.keys() - {"devices"}
    assert run.record.options.values["exact"] == "auto"


def test_the_first_run_leaves_nothing() -> None:
    before, shared = {run.id for run in list_runs()}, set(os.listdir("/dev/shm"))
    run = nbmgpu.run(TRAIN, notebook(DROPOUT), gpus=2, cpu=True, exact="auto")
    assert {each.id for each in list_runs()} - before == {run.id}
    assert nbmgpu.last_run is run
    assert run.record.batch_line == "global batch 8, all of it on every rank"
    assert "draws other random numbers" in run.view.notices["restarted"].text
    assert set(os.listdir("/dev/shm")) <= shared


WRITES = """
with open("log.txt", "a") as log:
    log.write("x")
os.makedirs("folder/inner")
os.makedirs("kept", exist_ok=True)
pathlib.Path("folder/inner/new.txt").write_text("y")
os.rename("folder/inner/new.txt", "moved.txt")
os.replace("old.txt", "renamed.txt")
os.remove("kept/removed.txt")
torch.save({"weights": X}, "saved.pt")
"""


def test_what_a_cell_has_written_is_undone(tmp_path: Path) -> None:
    cell, contents = f"import os, pathlib\n{WRITES}\n{TRAIN}", []
    for folder in (tmp_path / "alone", tmp_path / "ranks"):
        (folder / "kept").mkdir(parents=True)
        for name in ("log.txt", "old.txt", "renamed.txt", "kept/removed.txt"):
            (folder / name).write_text(name)
    result = run_both(cell, DROPOUT, folder=tmp_path, exact="auto")
    assert "restarted" in result.run.view.notices
    assert result.difference() < 1e-5
    for folder in (tmp_path / "alone", tmp_path / "ranks"):
        paths = [path for path in folder.rglob("*") if path.name != "saved.pt"]
        contents.append({
            str(path.relative_to(folder)): path.is_file() and path.read_text() for path in paths
        })  # fmt: skip
        assert torch.load(folder / "saved.pt")["weights"].shape == (44, 8)
    assert contents[0] == contents[1]
    assert contents[0]["log.txt"] == "log.txtx"


@pytest.mark.parametrize(
    "write",
    ["os.rename('folder', 'other')", SQLITE, "import subprocess; subprocess.run(['true'])"],
)
def test_a_cell_with_other_effects_does_not_start_again(
    write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    names = notebook(DROPOUT)
    run = nbmgpu.run(f"import os\n{write}\n{TRAIN}", names, gpus=2, cpu=True)
    assert run.view.notices.keys() - {"devices"} == {"random-step"}
    assert "--exact always" in run.view.notices["random-step"].text


def test_a_cell_with_a_compiled_model_does_not_start_again() -> None:
    """Ranks would have no part of its calls, so that all would do all the work."""
    cell = "model.compile(backend='eager')\n" + TRAIN
    run = nbmgpu.run(cell, notebook(DROPOUT), gpus=2, cpu=True)
    assert run.view.notices.keys() - {"devices"} == {"random-step"}
    assert "as it has a compiled model" in run.view.notices["random-step"].text


HARD_CODED = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x):
        start = torch.zeros(1, 8 if len(x) > 4 else 4, 6)
        return self.head(self.rnn(x.view(-1, 4, 2), start)[1][0])

loader = DataLoader(dataset, batch_size=8, drop_last=True)
X = X[:40]
"""


def test_the_size_of_the_batch_may_be_written_out() -> None:
    setup = HARD_CODED.replace("8 if len(x) > 4 else 4", "8") + model("Recurrent()")
    result = auto(idiom("hard-coded", TRAIN, setup=setup, curve=False))
    result.assert_equal()
    assert "raises RuntimeError" in result.run.view.notices["restarted"].text


def test_an_error_of_the_cell_is_raised_once() -> None:
    cell = TRAIN.replace("loss.backward()", "loss.backward(); losses.append(1 / 0)")
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(cell, notebook(DROPOUT), gpus=2, cpu=True, exact="auto")
    assert nbmgpu.last_run is not None
    assert nbmgpu.last_run.view.ending == "failed"
    nbmgpu.run("value = 1", notebook(), gpus=2, cpu=True)


def test_a_loop_that_ends_by_what_is_in_a_shard() -> None:
    setup = meeting_late("h = h")
    cell = """
for x, y in loader:
    if x[0, 0] > 0:
        break
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
    auto(
        idiom("left by data", cell, setup=setup + "X[20:24, 0] *= -1\n", curve=False)
    ).assert_equal()


@pytest.mark.parametrize(
    "line", ["--background", "--compile", "--compress bf16", "--batch per-rank"]
)
def test_options_under_which_nothing_starts_again(line: str) -> None:
    assert RunOptions.parse("--exact auto").may_restart
    assert not RunOptions.parse(f"--exact auto {line}").may_restart
    assert RunOptions.parse("").may_restart


def test_a_stop_is_not_undone_by_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes between the rank's end and the restart."""
    seen = Execution.is_to_restart.fget
    assert seen is not None

    def stopped(execution: Execution) -> bool:
        if found := seen(execution):
            execution.run.stop()
        return bool(found)

    monkeypatch.setattr(Execution, "is_to_restart", property(stopped))
    before = {run.id for run in list_runs()}
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.run(TRAIN, notebook(DROPOUT), gpus=2, cpu=True, exact="auto")
    assert {run.id for run in list_runs()} == before
    nbmgpu.run("value = 1", notebook(), gpus=2, cpu=True)
