"""Trainers of libraries write checkpoints when they are due, and go on there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from interrupted import assert_same_curve, run_until_it_fails
from matrix_selection import sampled

import nbmgpu

TRANSFORMERS = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback
from transformers import TrainingArguments

class Broken(Exception):
    pass

class FailAt(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == FAIL_AT:
            raise Broken

torch.manual_seed(0)
data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": n % 2} for n in range(40)]
model = BertForSequenceClassification(BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
))
arguments = TrainingArguments(
    OUT, num_train_epochs=3, per_device_train_batch_size=8, report_to=[], use_cpu=True,
    save_strategy="no", logging_steps=5, learning_rate=1e-2,
    eval_on_start=True, eval_strategy="steps", eval_steps=4,
)
trainer = Trainer(
    model, arguments, train_dataset=data, eval_dataset=data[:12], callbacks=[FailAt()]
)
"""
LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

class Broken(Exception):
    pass

class FailAt(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == FAIL_AT:
            raise Broken

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = Module()
trainer = pl.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_model_summary=False, enable_progress_bar=False, callbacks=[FailAt()],
    log_every_n_steps=1,
)
"""
CELLS = {"transformers": "trainer.train()", "lightning": "trainer.fit(model, loader)"}
SOURCES = {"transformers": TRANSFORMERS, "lightning": LIGHTNING}
LAST_STEPS = {"transformers": [9, 12], "lightning": [5, 10]}
"""Of 15 steps: those of the checkpoints that a run that fails after 13 steps has."""


def notebook(library: str, folder: str, fail_at: int = -1) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__", "OUT": folder, "FAIL_AT": fail_at}
    exec(SOURCES[library], namespace)
    return namespace


def weights(namespace: dict[str, Any]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in namespace["model"].parameters()])


def logs(namespace: dict[str, Any]) -> list[Any]:
    """Return what transformers' Trainer has logged, without times."""
    log = getattr(namespace["trainer"], "state", None)
    return [
        {key: value for key, value in entry.items() if not re.search("runtime|second", key)}
        for entry in getattr(log, "log_history", ())
    ]


def test_the_second_training_of_a_cell_goes_on(tmp_path) -> None:
    """A resumed cell runs the first one again: its checkpoint is of the second."""
    setup = LIGHTNING.replace("trainer.global_step == FAIL_AT", "FAIL_AT == (trainer.max_epochs, "
                              "trainer.global_step)")  # fmt: skip
    make = setup[setup.index("trainer = pl.Trainer(") :]
    cell = f"trainer.fit(model, loader)\n{make.replace('max_epochs=3', 'max_epochs=4')}" + (
        "trainer.fit(model, loader)"
    )
    options = {"gpus": 2, "cpu": True, "exact": "never"}

    def namespace(fail_at: object) -> dict[str, Any]:
        found: dict[str, Any] = {"__name__": "__main__", "FAIL_AT": fail_at}
        exec(setup, found)
        return found

    unbroken = namespace(-1)
    nbmgpu.run(cell, unbroken, **options)
    whole = nbmgpu.last_run
    run_until_it_fails(cell, namespace((4, 13)), checkpoint_every="epoch", **options)
    resumed = namespace(-1)
    torch.manual_seed(1)
    nbmgpu.run(cell, resumed, resume=True, **options)
    assert float((weights(unbroken) - weights(resumed)).abs().max()) < 1e-6
    assert_same_curve(nbmgpu.last_run, whole)


CASES = [(library, strategy) for strategy in ("ddp", "fsdp") for library in CELLS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "strategy"), sampled(CASES, 4, "nbmgpu/rank/checkpoints", "nbmgpu/rank/frameworks")
)
def test_a_training_goes_on_where_it_was(library: str, strategy: str, tmp_path) -> None:
    cell, out = CELLS[library], str(tmp_path / "out")
    options = {"gpus": 2, "cpu": True, "strategy": strategy, "exact": "never"}
    unbroken = notebook(library, out)
    nbmgpu.run(cell, unbroken, **options)
    whole = nbmgpu.last_run
    every = {"checkpoint_every": "3steps", "keep": 2}
    failed = run_until_it_fails(cell, notebook(library, out, 13), **options, **every)
    assert [each.step for each in failed.checkpoints] == LAST_STEPS[library]
    assert "no-checkpoints" not in failed.view.notices
    resumed = notebook(library, out)
    torch.manual_seed(1)
    nbmgpu.run(cell, resumed, resume=True, **options)
    assert float((weights(unbroken) - weights(resumed)).abs().max()) < 1e-6
    assert "not-resumed" not in nbmgpu.last_run.view.notices
    assert_same_curve(nbmgpu.last_run, whole)
    for entry, expected in zip(logs(resumed), logs(unbroken), strict=True):
        assert entry == pytest.approx(expected, abs=1e-6)
    fresh = notebook(library, out)
    before = weights(fresh)
    failed.checkpoint().load(fresh["model"])
    assert float((weights(fresh) - before).abs().max()) > 1e-4
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
