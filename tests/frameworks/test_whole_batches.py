"""Trainers whose samples interact start again with whole batches, with the files of one device."""

from __future__ import annotations

from pathlib import Path

import pytest
from idioms.comparison import run_both
from trainer_logs import written

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in ("isinstance.treespec, LeafSpec", "tensorboardX", "does not have many workers",
                 "smaller than the logging interval")
]  # fmt: skip

LAYERS = (
    "nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.Dropout(0.4), nn.ReLU(), nn.Linear(32, 4)"
)

HUGGING_FACE = f"""
from transformers import Trainer, TrainingArguments

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential({LAYERS})

    def forward(self, x, labels):
        logits = self.layers(x)
        return {{"loss": F.cross_entropy(logits, labels), "logits": logits}}

samples = [{{"x": x, "labels": y}} for x, y in zip(X, Y, strict=True)]
arguments = TrainingArguments(
    "out", max_steps=6, per_device_train_batch_size=8, report_to=[], use_cpu=True, save_steps=3,
    learning_rate=0.01, disable_tqdm=True,
)
torch.manual_seed(1)
module = Classifier()
"""

LIGHTNING = f"""
import lightning

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential({LAYERS})

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

torch.manual_seed(1)
module = Classifier()
"""

CELLS = {
    "Hugging Face": (
        "trainer = Trainer(module, arguments, train_dataset=samples)\ntrainer.train()",
        HUGGING_FACE,
    ),
    "Lightning": (
        "trainer = lightning.Trainer(max_epochs=2, accelerator='cpu', enable_progress_bar=False, "
        "enable_model_summary=False)\ntrainer.fit(module, loader)",
        LIGHTNING,
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_trainer_has_the_numbers_of_one_device(name: str, tmp_path: Path) -> None:
    cell, setup = CELLS[name]
    result = run_both(cell, setup, folder=tmp_path, exact="auto")
    assert "restarted" in result.run.view.notices
    assert result.difference("module") < 1e-5
    paths = written(tmp_path / "ranks")
    assert paths == written(tmp_path / "alone")
    assert any(Path(path).suffix in (".ckpt", ".safetensors") for path in paths)
