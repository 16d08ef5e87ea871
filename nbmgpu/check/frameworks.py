"""Checks of cells that train with transformers, Lightning or accelerate."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from .cells import MLP
from .check import Check, CheckSkipped, Finding
from .comparison import Cell, compare
from .setting import Setting

STRATEGIES = ("ddp", "zero1", "fsdp", "deepspeed_stage_2")


@dataclass(frozen=True)
class FrameworkCell:
    """A cell that needs a package."""

    package: str
    cell: Cell


CELLS = (
    FrameworkCell("transformers", Cell(
        "a Hugging Face Trainer", """
import tempfile
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging
logging.set_verbosity_error()
config = GPT2Config(
    n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=64, resid_pdrop=0.0,
    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (40, 16))]
arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=4, optim="sgd",
    learning_rate=0.1, report_to=[], save_strategy="no", logging_strategy="no",
    disable_tqdm=True, use_cpu=device.type == "cpu")
""", """
trainer = Trainer(model, arguments, train_dataset=rows)
output = trainer.train()
loss = output.training_loss
""", ("model", "loss"))),
    FrameworkCell("lightning", Cell(
        "a Lightning Trainer", """
import logging, warnings
import lightning
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model = Classifier()
""", """
trainer = lightning.Trainer(
    max_epochs=2, devices=1, accelerator="auto" if device.type == "cuda" else "cpu",
    logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False)
trainer.fit(model, loader)
""", ("model",))),
    FrameworkCell("accelerate", Cell(
        "accelerate", MLP.replace("model.to(device)", "from accelerate import Accelerator"), """
accelerator = Accelerator(cpu=device.type == "cpu")
prepared, opt, batches = accelerator.prepare(model, opt, loader)
for x, y in batches:
    loss = F.cross_entropy(prepared(x), y)
    opt.zero_grad()
    accelerator.backward(loss)
    opt.step()
    losses.append(loss.item())
""")),
)  # fmt: skip


def checks() -> list[Check]:
    """Return the checks of this group."""
    return [_check(strategy, cell) for cell in CELLS for strategy in STRATEGIES]


def _check(strategy: str, framework_cell: FrameworkCell) -> Check:
    def function(setting: Setting) -> Finding:
        package, cell = framework_cell.package, framework_cell.cell
        if importlib.util.find_spec(package) is None:
            raise CheckSkipped(f"needs {package}, which is not installed")
        setting.require_strategy(strategy)
        return compare(cell, setting, strategy=strategy)

    quick = strategy in ("ddp", "fsdp")
    return Check("frameworks", f"{strategy}, {framework_cell.cell.name}", function, quick)
