"""Source of Trainers that log to a tracker: to REPORT_TO, or to what loggers() returns."""

TRAINER = """
import transformers
from transformers import Trainer, TrainingArguments
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x, labels=None):
        logits = self.linear(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
torch.manual_seed(0)
data = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(24)]
os.environ["TENSORBOARD_LOGGING_DIR"] = NAME
args = TrainingArguments(NAME, max_steps=6, per_device_train_batch_size=4, logging_steps=1,
    report_to=REPORT_TO, save_strategy="no", use_cpu=True, disable_tqdm=True)
trainer = Trainer(Net(), args, train_dataset=data)
"""

LIGHTNING = """
import lightning as L
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def training_step(self, batch, number):
        loss = F.cross_entropy(self.linear(batch[0]), batch[1])
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
torch.manual_seed(0)
module = Module()
trainer = L.Trainer(max_epochs=2, log_every_n_steps=1, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
    logger=loggers())
"""
