"""Lightning cells on ranks have the numbers of one device, and are written back completely."""

from __future__ import annotations

import copy
import re
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from idioms.comparison import Comparison, run_both
from idioms.differences import Differences
from idioms.notebook import execute, notebook, working_directory
from trainer_logs import written

import nbmgpu

pytestmark = [
    # What Lightning says of these small cells on one device as well.
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in (
        "isinstance.treespec, LeafSpec", "tensorboardX", "does not have many workers",
        "smaller than the logging interval", "exists and is not empty", "fp16 is not supported on",
        "overfit but enabled", "Swapping scheduler", "IterableDataset. has .__len__",
        "returned .None.",
        "callbacks used to create", "reached the end of the", "Trying to infer the .batch_size",
    )
]  # fmt: skip

CELLS = (Path(__file__).parent / "lightning_cells.py").read_text()
NAMES = re.findall(r"^def (fits_\w+)", CELLS, re.MULTILINE)
ALL = f"""
import traceback
found = {{}}
for cell in ({", ".join(NAMES)}):
    torch.manual_seed(1)
    try:
        found[cell.__name__] = cell()
    except Exception:
        found[cell.__name__] = traceback.format_exc()
"""
HALF = {"fits_in_half_precision": 5e-3}
"""Cells whose numbers are rounded to so many digits that an order of additions shows."""


def differences(a: Any, b: Any, rtol: float = 1e-5) -> list[str]:
    """Return where ``b`` of ranks differs from ``a`` of one device."""
    found = Differences(rtol, max(1e-6, rtol))
    found.compare("", a, b)
    return found.found


def on_ranks(
    folder: Path, cell: str, source: str = CELLS, **options: Any
) -> tuple[nbmgpu.Run, dict[str, Any]]:
    """Run ``source`` in this process and ``cell`` on two ranks; return run and namespace."""
    with working_directory(folder):
        namespace = notebook(source, prelude="")
        return nbmgpu.run(cell, namespace, **({"gpus": 2, "cpu": True} | options)), namespace


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run_both(ALL, CELLS, prelude="", folder=tmp_path_factory.mktemp("cells"))


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_has_the_numbers_of_one_device(both: Comparison, name: str) -> None:
    expected, found = both.alone["found"][name], both.ranks["found"][name]
    assert isinstance(expected, dict), expected
    assert isinstance(found, dict), found
    wrong = differences(expected, found, rtol=HALF.get(name, 1e-5))
    assert not wrong, "\n".join(wrong[:20])


KERNEL = (
    CELLS
    + """
class Digits(pl.LightningDataModule):
    def train_dataloader(self):
        return batches(shuffle=True)

    def val_dataloader(self):
        return VALIDATION

module, data = Module(), Digits()
best = callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True)
stop = callbacks.EarlyStopping("val_loss", patience=5)
notes = Notes()
trainer = pl.Trainer(
    max_epochs=2, accelerator="cpu", log_every_n_steps=2, callbacks=[best, stop, notes]
)
kinds = [type(callback) for callback in trainer.callbacks]
"""
)
FIT = "trainer.fit(module, data)"
MORE = """
torch.manual_seed(2)
trainer.fit_loop.max_epochs = 4
trainer.fit(module, data, ckpt_path=best.last_model_path)
"""


def test_a_trainer_of_the_notebook_is_written_back_as_on_one_device(tmp_path) -> None:
    with working_directory(tmp_path / "alone"):
        expected = notebook(KERNEL, prelude="")
        execute(FIT, expected)
    with working_directory(tmp_path / "ranks"):
        found = notebook(KERNEL, prelude="")
    own = {name: found[name] for name in ("trainer", "module", "data", "best", "stop")}
    runs = []
    for cell in (FIT, MORE):
        with working_directory(tmp_path / "ranks"):
            runs.append(nbmgpu.run(cell, found, gpus=2, cpu=True))
        assert all(found[name] is value for name, value in own.items())
        assert [type(callback) for callback in found["trainer"].callbacks] == found["kinds"]
        assert differences(of_trainer(expected), of_trainer(found)) == []
        assert written(tmp_path / "ranks") == written(tmp_path / "alone")
        assert set(runs[-1].view.notices) == {"devices"}
        with working_directory(tmp_path / "alone"):
            execute(MORE, expected)
    kind = found["Module"]
    loaded = kind.load_from_checkpoint(found["best"].best_model_path, weights_only=False)
    best = [Path(space["best"].best_model_path) for space in (expected, found)]
    saved = [torch.load(path, weights_only=False) for path in best]
    assert differences(dict(saved[0]["state_dict"]), dict(loaded.state_dict())) == []
    assert differences(saved[0]["optimizer_states"], saved[1]["optimizer_states"]) == []
    for space in (expected, found):  # and the notebook continues
        execute("again = trainer.validate(module, VALIDATION, verbose=False)", space)
    assert differences(expected["again"], found["again"]) == []
    assert_that_the_panel_shows(runs[0])


def of_trainer(space: dict[str, Any]) -> dict[str, Any]:
    trainer, best = space["trainer"], space["best"]
    return {
        "weights": dict(space["module"].state_dict()),
        "metrics": [
            space["numbers"](m) for m in (trainer.callback_metrics, trainer.logged_metrics)
        ],
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "paths": [Path(p).name for p in (best.best_model_path, best.last_model_path)],
        "score": best.best_model_score,
        "scores": sorted(float(score) for score in best.best_k_models.values()),
        "stop": [space["stop"].best_score, space["stop"].wait_count],
        "steps": space["notes"].steps,
        "optimizers": [o.state_dict()["state"] for o in trainer.optimizers],
    }


def assert_that_the_panel_shows(run: nbmgpu.Run) -> None:
    """Curves without code, one bar for the training, the summary once."""
    lengths = {name: len(curve) for name, curve in run.view.curves.items()}
    expected = {"loss": 12, "lr": 12, "train_loss_step": 12, "train_loss_epoch": 2, "val_loss": 2}
    assert lengths.items() >= (expected | {"val_accuracy": 2}).items()
    assert set(run.view.progress) == {"loader", "evaluation"}
    assert run.view.progress["evaluation"].done
    assert run.log(0).count("Total params") == 1
    assert "it/s" not in run.log(0)
    assert "sync_dist" not in run.log(0)


def test_lightning_distributes_by_itself_under_none_alone(tmp_path) -> None:
    cell = """
    found = []
    for options in (
        {"strategy": "ddp", "devices": 2}, {"strategy": "fsdp"}, {"strategy": "deepspeed_stage_2"},
        {"strategy": DDPStrategy()}, {"num_nodes": 2},
        {"strategy": ModelParallelStrategy()},
        {"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)},
        {"devices": 2}, {"devices": "auto"},
        {"strategy": "single_device"},
    ):
        try:
            made = pl.Trainer(accelerator="cpu", logger=False, **options)
            found.append((type(made.strategy).__name__, made.world_size))
        except nbmgpu.errors.StrategyError as error:
            found.append(str(error))
    """
    source = (
        CELLS
        + "import nbmgpu\n"
        + "from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy\n"
    )
    _, namespace = on_ranks(tmp_path, textwrap.dedent(cell), source)
    *refused, two, auto, one = namespace["found"]
    assert two == auto == one == ("SingleDeviceStrategy", 1)
    names = "ddp", "fsdp", "deepspeed", "ddp", "ddp", "tp", "fsdp+tp --mesh fsdp=2,tp=2 --gpus 4"
    for message, name in zip(refused, names, strict=True):
        assert "distributes by itself" in message
        assert f"%%mgpu --strategy {name}" in message
        assert "--strategy none" in message


def test_under_none_lightning_reads_the_variables_of_torchrun(tmp_path) -> None:
    cell = """
    trainer = pl.Trainer(
        strategy="ddp", devices=2, accelerator="cpu", max_epochs=1, logger=False,
        enable_progress_bar=False,
    )
    module = Module()
    trainer.fit(module, batches(4), VALIDATION)
    found = trainer.world_size, trainer.global_rank, trainer.num_training_batches
    """
    run, _ = on_ranks(tmp_path, textwrap.dedent(cell), strategy="none")
    assert [run.results[rank]["found"] for rank in (0, 1)] == [(2, 0, 6), (2, 1, 6)]
    assert written(tmp_path) == ["checkpoints/epoch=0-step=6.ckpt"]


@pytest.mark.slow
def test_the_older_package_name_works(tmp_path) -> None:
    source = CELLS.replace("lightning.pytorch", "pytorch_lightning")
    cell = "found = [fits_shuffled(), fits_by_hand(), fits_with_checkpoints()]"
    result = run_both(cell, source, prelude="", folder=tmp_path)
    assert differences(result.alone["found"], result.ranks["found"]) == []
    assert written(tmp_path / "ranks") == written(tmp_path / "alone")


@pytest.mark.slow
def test_a_batch_per_rank_is_a_larger_global_batch(tmp_path) -> None:
    cell = "found = train(Module(), loader=batches({size}), num_sanity_val_steps=0)"
    larger = cell.format(size=8), CELLS
    result = run_both(
        cell.format(size=4), CELLS, alone=larger, prelude="", folder=tmp_path, batch="per-rank"
    )
    assert differences(result.alone["found"], result.ranks["found"]) == []


FORKS = """
trainer = pl.Trainer(
    strategy="ddp_notebook", devices=2, accelerator="cpu", max_epochs=99, logger=False,
    enable_checkpointing=False,
)
module = Module()
loader = batches(1)
"""


@pytest.mark.slow
def test_an_interrupted_fit_is_written_back(tmp_path) -> None:
    """Also one of a Trainer for several devices, as notebooks build them."""
    with working_directory(tmp_path):
        namespace = notebook(CELLS + FORKS, prelude="")
        trainer, before = namespace["trainer"], copy.deepcopy(namespace["module"].state_dict())
        run = nbmgpu.run(
            "trainer.fit(module, loader)", namespace, gpus=2, cpu=True, background=True
        )
    deadline = time.monotonic() + 100
    while len(run.view.curves.get("loss", ())) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
        run.refresh()
    run.stop()
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)
    assert run.state == "stopped"
    assert namespace["trainer"] is trainer
    assert trainer.global_step >= 3
    assert type(trainer.strategy).__name__ == "DDPStrategy"
    assert differences(before, dict(namespace["module"].state_dict()))


DIFFERS = """
class Picky(Module):
    total = 0

    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.total += len(x)
        self.accuracy(self(x), y)
        if batch_idx == 1 and x[0, 0] == X[8, 0]:
            self.log("first", 1.0)
        if batch_idx == 3 and x[0, 0] == X[24, 0]:
            return None
        return super().training_step(batch, batch_idx)
"""


def test_different_decisions_of_ranks_are_reported(tmp_path) -> None:
    cell = (
        DIFFERS
        + """
try:
    train(Picky())
except Exception as error:
    found = type(error).__name__, str(error)
"""
    )
    run, namespace = on_ranks(tmp_path, cell, exact="never")
    kind, text = namespace["found"]
    assert kind == "StrategyError"
    assert "returned None on some ranks" in text
    assert "0.0 * loss" in text
    assert set(run.view.notices) >= {
        "logged-on-some-ranks", "batch-sizes", "sharded-metric",
    }  # fmt: skip
