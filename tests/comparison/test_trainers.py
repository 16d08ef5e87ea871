"""``--steps`` ends training loops of libraries, and such cells can be compared."""

from __future__ import annotations

import pytest
from cells import notebook

import nbmgpu

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # libraries' own warnings

HUGGING_FACE = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

sizes = dict(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16)
config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                    loss_type="ForCausalLM", bos_token_id=0, eos_token_id=0)
torch.manual_seed(0)
texts = [dict(input_ids=ids, labels=ids) for ids in torch.randint(0, 40, (22, 8))]
"""
TRAINER = """
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=50,
    report_to=[], save_strategy="no", use_cpu=True, seed=1, disable_tqdm=True,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=texts)
trainer.train()
after = True
"""
LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
data = TensorDataset(torch.randn(41, 8), torch.randint(0, 4, (41,)))
"""
FIT = """
trainer = pl.Trainer(
    max_epochs=50, accumulate_grad_batches=2, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
)
trainer.fit(Module(), DataLoader(data, batch_size=8, shuffle=True))
after = True
"""


MATRIX = pytest.mark.matrix("nbmgpu/comparison", "nbmgpu/rank/frameworks")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # trainers leave files


@pytest.mark.parametrize(
    ("setup", "cell"),
    [
        pytest.param(HUGGING_FACE, TRAINER, id="transformers"),
        pytest.param(LIGHTNING, FIT, id="lightning", marks=MATRIX),
    ],
)
def test_steps_and_comparison_with_a_trainer(setup, cell):
    shared = notebook(setup)
    run = nbmgpu.run(cell, shared, gpus=2, cpu=True, steps=5, seed=0)
    assert run.state == "finished"
    trainer = shared["trainer"]
    counted = trainer if cell is FIT else trainer.state
    assert counted.global_step == 5
    assert "after" not in shared

    comparison = nbmgpu.compare(
        cell, shared, strategies=("ddp", "fsdp"), gpus=2, cpu=True, steps=5, seed=0
    )
    for row in comparison.rows:
        assert (row.state, row.timing.steps) == ("finished", 5), row.reason
        assert row.loss.agrees
        assert row.loss.difference == pytest.approx(0, abs=1e-4)
        assert row.timing.samples_per_second > 0
        assert row.loss.value == pytest.approx(comparison.rows[0].loss.value, rel=1e-4)
