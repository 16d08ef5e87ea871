"""Trainers under every strategy: the numbers of one device, and checkpoints that load plainly."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from idioms.architectures import STRATEGIES
from idioms.comparison import run_both
from idioms.differences import difference
from idioms.notebook import notebook, working_directory
from matrix_selection import sampled
from test_huggingface import SETUP
from trainer_logs import FLOPS, logged

import nbmgpu
from nbmgpu.errors import StrategyError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and Lightning, in this process

EXERCISED = ("nbmgpu/rank/frameworks", "nbmgpu/strategies")

BUILD = """
torch.manual_seed(3)
trainers = [
    Trainer(bert(), arguments(gradient_accumulation_steps=2, eval_strategy="epoch",
                              save_strategy="epoch", load_best_model_at_end=True,
                              output_dir="bert"),
            train_dataset=classes, eval_dataset=classes[:9], compute_metrics=accuracy),
    Trainer(gpt2(), arguments(max_grad_norm=0.1, warmup_steps=2, adam_epsilon=1e-6),
            train_dataset=texts),
    Trainer(llama(), arguments(lr_scheduler_type="cosine", num_train_epochs=1),
            train_dataset=ragged, data_collator=pad),
]
"""
TRAIN = """
outputs = [trainer.train() for trainer in trainers]
metrics = trainers[0].evaluate()
trainers[1].save_model("saved")
"""
MORE = """
def arguments(output_dir="out", **more):
    common = dict(num_train_epochs=2, learning_rate=3e-3, report_to="none", logging_steps=1,
                  save_strategy="no", use_cpu=True, per_device_train_batch_size=5)
    return TrainingArguments(output_dir, **{**common, **more})
trainers = outputs = metrics = None
"""


@pytest.mark.parametrize(
    ("strategy", "built_in"),
    sampled(itertools.product(STRATEGIES, ("kernel", "cell")), 25, *EXERCISED),
)
def test_hugging_face(tmp_path: Path, strategy: str, built_in: str) -> None:
    setup, cell = (SETUP + MORE, BUILD + TRAIN)
    if built_in == "kernel":
        setup, cell = setup + BUILD, TRAIN
    result = run_both(cell, setup, prelude="", folder=tmp_path, strategy=strategy)
    assert not result.notices - {"data-parallel", "model-parallel"}
    for alone, ranks in zip(result.alone["trainers"], result.ranks["trainers"], strict=True):
        assert difference(alone.model, ranks.model) < 1e-5
        assert difference(logged(alone, FLOPS), logged(ranks, FLOPS)) < 1e-5
        assert ranks.state.global_step == alone.state.global_step
        assert type(ranks.model) is type(alone.model)
    saved = result.ranks["GPT2LMHeadModel"].from_pretrained(tmp_path / "ranks" / "saved")
    assert difference(result.alone["trainers"][1].model, saved) < 1e-5
    for kept in sorted((tmp_path / "alone" / "bert").glob("checkpoint-*")):
        cls = result.ranks["BertForSequenceClassification"]
        theirs = cls.from_pretrained(tmp_path / "ranks" / "bert" / kept.name)
        assert difference(cls.from_pretrained(kept), theirs) < 1e-5


LIGHTNING = """
import lightning.pytorch as pl, torch, torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X, Y = torch.randn(41, 8), torch.randint(0, 4, (41,))
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
validation = DataLoader(TensorDataset(X.flip(0) * 0.9, Y.flip(0)), batch_size=9)

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
        self.scale = nn.Parameter(torch.ones(4))
    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x) * self.scale, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss
    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x) * self.scale, y))
    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)]

def build(**more):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False,
                 accelerator="cpu", max_epochs=3)
    return pl.Trainer(callbacks=[ModelCheckpoint("kept", monitor="val_loss")], **quiet, **more)
module, other = Module(), Module()
trainer = second = None
"""
BUILD_LIGHTNING = """
trainer, second = build(gradient_clip_val=0.2), build(accumulate_grad_batches=2)
"""
FIT = """
trainer.fit(module, loader, validation)
second.fit(other, loader, validation)
metrics = {**trainer.callback_metrics}
best = trainer.checkpoint_callback.best_model_path
"""


@pytest.mark.parametrize(
    ("strategy", "built_in"),
    sampled(itertools.product(STRATEGIES[:-2], ("cell", "kernel")), 23, *EXERCISED),  # not mp, dp
)
def test_lightning(tmp_path: Path, strategy: str, built_in: str) -> None:
    setup, cell = LIGHTNING, BUILD_LIGHTNING + FIT
    if built_in == "kernel":
        setup, cell = setup + BUILD_LIGHTNING, FIT
    result = run_both(cell, setup, prelude="", folder=tmp_path, strategy=strategy)
    for name in ("module", "other", "metrics"):
        assert result.difference(name) < 1e-5, name
    for name in ("trainer", "second"):
        assert result.ranks[name].global_step == result.alone[name].global_step
    kept = [
        torch.load(side["best"], weights_only=False)["state_dict"]
        for side in (result.alone, result.ranks)
    ]
    assert difference(*kept) < 1e-5
    result.ranks["module"].load_state_dict(kept[1])


@pytest.mark.parametrize(
    ("setup", "cell", "instead"),
    [
        (SETUP + MORE + BUILD, "trainers[1].train()", "gradient_accumulation_steps=2"),
        (LIGHTNING + BUILD_LIGHTNING, "trainer.fit(module, loader)", "accumulate_grad_batches=2"),
    ],
)
def test_trainers_accumulate_by_their_own_option(
    tmp_path: Path, setup: str, cell: str, instead: str
) -> None:
    with working_directory(tmp_path), pytest.raises(StrategyError, match=instead):
        nbmgpu.run(cell, notebook(setup, prelude=""), gpus=2, cpu=True, accumulate=2)
