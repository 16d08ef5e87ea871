"""Cells of a notebook that trains with Lightning, one function each.

The file is a cell itself: its source is run in a notebook's namespace, and a second cell calls
the functions whose names begin with ``fits_``, on one device or on ranks.  Each returns
what is to be compared.
"""

import copy
import os

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch import callbacks, loggers
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

X = torch.randn(41, 8)  # with batches of 8 the last one is a single sample
Y = torch.randint(0, 4, (41,))
DATA = TensorDataset(X, Y)
VALIDATION = DataLoader(TensorDataset(X.flip(0) * 0.9, Y.flip(0)), batch_size=9)

OWN = object()  # the module's own loaders


class Module(pl.LightningModule):
    """A classifier as in Lightning's own introduction."""

    lr = 0.1

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
        self.seen = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_accuracy", (out.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Notes(pl.Callback):
    """Writes down what a callback of the user would see."""

    def __init__(self):
        self.steps, self.validations, self.rates = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = outputs["loss"].item() if "loss" in outputs else None
        self.steps.append((loss, numbers(trainer.callback_metrics)))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer, module):
        self.validations.append(numbers(trainer.callback_metrics))


def numbers(metrics):
    return {name: float(value) for name, value in metrics.items()}


def train(module, *data, loader=None, epochs=2, datamodule=None, ckpt_path=None, **options):
    """Fit ``module`` and return all that there is to see."""
    notes = Notes()
    if not data and loader is not OWN and datamodule is None:
        data = (batches() if loader is None else loader, VALIDATION)
    own = options.pop("callbacks", [])
    given = {"max_epochs": epochs, "logger": False, "enable_checkpointing": False,
             "enable_model_summary": False, "enable_progress_bar": False,
             "log_every_n_steps": 1, "accelerator": "cpu"} | options  # fmt: skip
    trainer = pl.Trainer(callbacks=[notes, *own], **given)
    trainer.fit(module, *data, datamodule=datamodule, ckpt_path=ckpt_path)
    train.trainer = trainer
    return seen_after(trainer, module) | {
        "steps": notes.steps, "validations": notes.validations, "rates": notes.rates,
    }  # fmt: skip


def seen_after(trainer, module):
    return {
        "weights": {k: v.clone() for k, v in module.state_dict().items()},
        "callback_metrics": numbers(trainer.callback_metrics),
        "logged_metrics": numbers(trainer.logged_metrics),
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "seen": list(getattr(module, "seen", [])),
        "next random number": torch.rand(1).item(),
    }


def batches(size=8, **options):
    return DataLoader(DATA, batch_size=size, **options)


def fits_in_order():
    return train(Module())


def fits_shuffled():
    return train(Module(), loader=batches(shuffle=True), epochs=3)


def fits_batches_that_split_unevenly():
    return train(Module(), loader=batches(9, shuffle=True, drop_last=True))


def fits_a_datamodule_with_workers():
    class Digits(pl.LightningDataModule):
        def prepare_data(self):
            with open("prepared.txt", "a") as file:
                file.write("prepared\n")

        def setup(self, stage):
            self.data = DATA

        def train_dataloader(self):
            return DataLoader(self.data, 8, shuffle=True, num_workers=1, persistent_workers=True)

        def val_dataloader(self):
            return VALIDATION

    return train(Module(), datamodule=Digits())


def fits_hooks_and_two_loaders():
    class Own(Module):
        def train_dataloader(self):
            return {"a": batches(8, shuffle=True), "b": batches(4)}

        def val_dataloader(self):
            return VALIDATION

        def training_step(self, batch, batch_idx):
            loss = sum(F.cross_entropy(self(x), y) for x, y in batch.values())
            self.log("train_loss", loss)
            return {"loss": loss}

    return train(Own(), loader=OWN, limit_train_batches=5)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def fits_a_stream_without_length():
    return train(Module(), loader=DataLoader(Stream(), batch_size=8), val_check_interval=2)


class Sampling(Module):
    """Draws random numbers outside of training steps."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        noise = torch.randn(3)
        self.log("noise", noise.mean())

    def on_train_epoch_end(self):
        self.seen.append(torch.rand(2).tolist())


def fits_with_validation_in_between():
    module = Sampling()
    return train(module, loader=batches(shuffle=True), val_check_interval=2, epochs=2)


def fits_by_hand():
    class Gan(pl.LightningModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.generator = nn.Linear(8, 8)
            self.critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

        def training_step(self, batch, batch_idx):
            x, _ = batch
            first, second = self.optimizers()
            ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
            self.toggle_optimizer(first)
            loss = F.binary_cross_entropy_with_logits(self.critic(self.generator(x)), ones)
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            self.untoggle_optimizer(first)
            self.toggle_optimizer(second)
            real = F.binary_cross_entropy_with_logits(self.critic(x), ones)
            fake = F.binary_cross_entropy_with_logits(
                self.critic(self.generator(x).detach()), zeros
            )
            both = (real + fake) / 2
            second.zero_grad()
            self.manual_backward(both)
            self.clip_gradients(second, gradient_clip_val=0.1)
            second.step()
            self.untoggle_optimizer(second)
            self.log_dict({"g": loss, "d": both}, on_epoch=True, on_step=True, prog_bar=True)
            if self.trainer.is_last_batch:
                self.lr_schedulers().step()

        def configure_optimizers(self):
            first = torch.optim.Adam(self.generator.parameters(), lr=1e-2)
            second = torch.optim.Adam(self.critic.parameters(), lr=1e-2)
            return [first, second], [torch.optim.lr_scheduler.StepLR(second, 1, 0.5)]

    return train(Gan(), batches(shuffle=True))


def fits_accumulating_and_clipping():
    return {
        "norm": train(Module(), accumulate_grad_batches=4, gradient_clip_val=0.2),
        "value": train(Module(), gradient_clip_val=0.05, gradient_clip_algorithm="value"),
    }


def fits_with_schedulers():
    def one_cycle(opt):
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=12)
        return {"scheduler": schedule, "interval": "step"}

    def plateau(opt):
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.3)
        return {"scheduler": schedule, "monitor": "val_loss"}

    def by_epoch(opt):
        return {"scheduler": torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)}

    class Scheduled(Module):
        def __init__(self, schedule):
            super().__init__()
            self.schedule = schedule

        def configure_optimizers(self):
            opt = super().configure_optimizers()
            return {"optimizer": opt, "lr_scheduler": self.schedule(opt)}

    return {
        "by step": train(Scheduled(one_cycle)),
        "by epoch": train(Scheduled(by_epoch), epochs=3),
        "plateau": train(Scheduled(plateau), epochs=4),
    }


def fits_within_limits():
    return {
        "max_steps": train(Module(), max_steps=7, epochs=-1, val_check_interval=3),
        "limits": train(Module(), limit_train_batches=3, limit_val_batches=2),
        "overfit": train(Module(), loader=batches(shuffle=True), overfit_batches=2),
        "fast_dev_run": train(Module(), fast_dev_run=3),
    }


def fits_until_it_stops_early():
    stop = callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.1)
    return train(Module(), epochs=20, callbacks=[stop]) | {"at": stop.stopped_epoch}


def fits_averaging_weights():
    swa = callbacks.StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2)
    return train(Module(), epochs=4, callbacks=[swa])


def fits_with_lbfgs():
    class Newton(Module):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    return train(Newton(), epochs=1)


def fits_logging_in_all_ways():
    class Talkative(Module):
        def training_step(self, batch, batch_idx):
            x, y = batch
            out = self(x)
            loss = F.cross_entropy(out, y, ignore_index=0)
            right = (out.argmax(1) == y).float()
            self.log("loss", loss)
            self.log("number", loss.item(), on_epoch=True)
            self.log("accuracy", right.mean(), on_step=True, on_epoch=True, sync_dist=True)
            self.log("sized", right.mean(), on_step=False, on_epoch=True, batch_size=len(x))
            self.log("constant", right.mean(), on_step=False, on_epoch=True, batch_size=3)
            self.log("right", right.sum(), reduce_fx="sum", on_step=True, on_epoch=True)
            self.log("most", out.max(), reduce_fx="max", on_step=False, on_epoch=True)
            self.log("least", out.min(), reduce_fx=torch.min, on_step=False, on_epoch=True)
            self.log_dict({"a": out.square().mean(), "b": 2.0}, on_step=False, on_epoch=True)
            if batch_idx % 2:
                self.log("odd", right.mean(), on_step=False, on_epoch=True)
            self.seen.append(loss.detach())
            return {"loss": loss, "right": right.mean().detach()}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("from_outputs", outputs["loss"], on_step=False, on_epoch=True)

        def on_before_optimizer_step(self, optimizer):
            norm = torch.stack([p.grad.norm() for p in self.parameters()]).norm()
            self.log("grad_norm", norm, on_step=True, on_epoch=True)

        def on_train_epoch_end(self):
            self.log("mean_seen", torch.stack(self.seen).mean())
            self.seen.clear()

    return train(Talkative(), loader=batches(7, shuffle=True))


def fits_a_summed_loss():
    class Summed(Module):
        lr = 0.01

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self(x), y, reduction="sum")
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

    return train(Summed())


def fits_a_loss_divided_by_a_count():
    class Chosen(Module):
        def training_step(self, batch, batch_idx):
            x, y, chosen = batch
            total = F.cross_entropy(self(x)[chosen], y[chosen], reduction="sum")
            loss = total / max(1, int(chosen.sum()))
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

    chosen = (torch.arange(41) % 8 < 5) | (torch.arange(41) == 40)  # four of five on a rank
    return train(Chosen(), loader=DataLoader(TensorDataset(X, Y, chosen), batch_size=8))


def fits_with_metrics():
    class Measurements(Module):
        def __init__(self):
            super().__init__()
            kinds = {"task": "multiclass", "num_classes": 4}
            self.accuracy = torchmetrics.Accuracy(**kinds)
            self.area = torchmetrics.AUROC(**kinds)
            self.several = torchmetrics.MetricCollection(
                [torchmetrics.F1Score(**kinds, average="macro"), torchmetrics.Recall(**kinds)]
            )
            self.confusion = torchmetrics.ConfusionMatrix(**kinds)
            self.total = torchmetrics.SumMetric()

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            x, y = batch
            out = self(x)
            self.area.update(out, y)
            self.several.update(out, y)
            self.confusion.update(out, y)
            self.total.update(len(x))
            self.accuracy(out, y)
            self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
            self.log("area", self.area)

        def on_validation_epoch_end(self):
            self.log_dict(self.several.compute())
            self.seen += [self.confusion.compute(), self.total.compute()]
            self.confusion.reset()
            self.total.reset()

    return train(Measurements(), val_check_interval=3)


def fits_skipping_batches():
    class Skipping(Module):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 2 else super().training_step(batch, batch_idx)

    return train(Skipping())


def fits_and_evaluates():
    class Whole(Module):
        def test_step(self, batch, batch_idx, dataloader_idx=0):
            x, y = batch
            self.log("test_loss", F.cross_entropy(self(x), y))

        def predict_step(self, batch, batch_idx):
            return self(batch[0])

    module = Whole()
    found = train(module, epochs=1)
    trainer = train.trainer
    found["validate"] = trainer.validate(module, VALIDATION, verbose=False)
    found["test"] = trainer.test(module, [VALIDATION, batches(5)], verbose=False)
    found["predict"] = torch.cat(trainer.predict(module, VALIDATION))
    return found


def fits_with_checkpoints():
    best = callbacks.ModelCheckpoint(
        "checkpoints", "{epoch}-{val_loss:.3f}", monitor="val_loss", save_top_k=2, save_last="link"
    )
    module = Module()
    found = train(module, epochs=3, callbacks=[best], enable_checkpointing=True)
    again = train(Module(), epochs=5, ckpt_path=best.best_model_path)
    return found | {
        "again": again,
        "best": os.path.basename(best.best_model_path),
        "score": best.best_model_score.item(),
        "files": sorted(os.listdir("checkpoints")),
        "loaded": Module.load_from_checkpoint(best.best_model_path).state_dict(),
    }


def fits_with_a_logger():
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", log_every_n_steps=2, enable_model_summary=False,
        enable_progress_bar=False, logger=loggers.CSVLogger("."),
    )  # fmt: skip
    module = Module()
    trainer.fit(module, batches(), VALIDATION)
    path = os.path.relpath(trainer.checkpoint_callback.best_model_path)
    with open(os.path.join(trainer.log_dir, "metrics.csv")) as file:
        header, *rows = (line.strip().split(",") for line in file)
    rows = [[float(cell or "nan") for cell in row] for row in rows]
    return seen_after(trainer, module) | {"path": path, "header": header, "rows": rows}


def fits_then_loops():
    """A Trainer, and afterwards a loop without one."""
    module = Module()
    found = train(module, epochs=1)
    opt = torch.optim.SGD(module.parameters(), lr=0.1)
    module.train()
    for x, y in batches():
        opt.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        opt.step()
    return found | {"later": copy.deepcopy(module.state_dict()), "last": loss.item()}


def fits_in_half_precision():
    found = {}
    for precision in ("bf16-mixed", "16-mixed", "bf16-true"):
        found[precision] = train(Module(), precision=precision)["weights"]
    found["64-true"] = train(Module().double(), loader=double(), precision="64-true")["weights"]
    return found


def double():
    return DataLoader(TensorDataset(X.double(), Y), batch_size=8)
