"""Cells with accelerate, datasets and torchmetrics leave on ranks what they leave on one device."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from idioms.comparison import run_both
from idioms.notebook import notebook, working_directory

import nbmgpu
from nbmgpu.errors import StrategyError

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, in this process

SETUP = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

X, Y = torch.randn(45, 8), torch.randint(0, 4, (45,))

def objects():
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, 12)
    return model, opt, DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True), sched

val = DataLoader(TensorDataset(X.flip(0) * 0.9, Y.flip(0)), batch_size=7)
losses, counts = [], []
"""
PREPARE = """
accelerator = Accelerator(gradient_accumulation_steps=2)
model, opt, loader, sched = accelerator.prepare(*objects())
val = accelerator.prepare(val)
"""
CELL = """
for epoch in range(2):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            sched.step()
            opt.zero_grad()
        losses.append(loss.item())
    model.eval()
    right = total = 0
    for x, y in val:
        with torch.no_grad():
            p, t = accelerator.gather_for_metrics((model(x).argmax(-1), y))
        right += (p == t).sum().item()
        total += len(t)
    counts.append((right, total))
    accelerator.save_state("state")
    accelerator.wait_for_everyone()
    if epoch == 0:
        accelerator.load_state("state")
accelerator.print("done", accelerator.is_main_process)
plain = accelerator.unwrap_model(model)
"""


@pytest.mark.parametrize("built", ["in the notebook", "in the cell"])
def test_an_accelerator_trains_as_on_one_device(tmp_path: Path, built: str) -> None:
    parts = (SETUP + PREPARE, CELL) if built == "in the notebook" else (SETUP, PREPARE + CELL)
    result = run_both(*reversed(parts), prelude="", folder=tmp_path)
    for name in ("model", "plain", "opt", "losses", "counts"):
        assert result.difference(name) < 1e-5, name
    assert "done True\n" in result.run.log()
    assert not result.notices
    names = [sorted(p.name for p in (tmp_path / s / "state").iterdir()) for s in ("alone", "ranks")]
    assert names[0] == names[1]
    held = result.ranks["accelerator"], result.ranks["opt"], result.ranks["sched"]
    assert len({id(vars(x.gradient_state)) for x in held}) == 1
    assert held[0].num_processes == 1


NUMBERED = """
import time
from accelerate.utils import ProjectConfiguration
accelerator = Accelerator(project_config=ProjectConfiguration(
    "states", automatic_checkpoint_naming=True, total_limit=2))
model, opt, loader, sched = accelerator.prepare(*objects())
begun = time.monotonic()
for number in range(4):
    for x, y in loader:
        accelerator.backward(F.cross_entropy(model(x), y))
        opt.step()
        opt.zero_grad()
    accelerator.save_state()
    before = [p.detach().clone() for p in model.parameters()]
    accelerator.load_state(f"states/checkpoints/checkpoint_{number}")
    losses.append(sum(float((p - q).abs().sum()) for p, q in zip(model.parameters(), before)))
took = time.monotonic() - begun
"""


def test_states_are_numbered_and_old_ones_deleted(tmp_path: Path) -> None:
    result = run_both(NUMBERED, SETUP, prelude="", folder=tmp_path)
    assert result.difference("losses") == 0
    assert result.ranks["took"] < 8
    for side in ("alone", "ranks"):
        kept = (tmp_path / side / "states" / "checkpoints").iterdir()
        assert sorted(p.name for p in kept) == ["checkpoint_2", "checkpoint_3"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("parallelism_config=ParallelismConfig(tp_size=2)", "--strategy tp --gpus 2"),
        ("parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2)",
         "--strategy fsdp+tp --mesh fsdp=2,tp=2 --gpus 4"),
        ("torch_tp_plugin=TorchTensorParallelPlugin(tp_size=4)", "--strategy tp --gpus 4"),
        ("deepspeed_plugin=DeepSpeedPlugin(hf_ds_config="
         "{'tensor_parallel': {'autotp_size': 2}, 'zero_optimization': {'stage': 1}})",
         "--strategy tp --gpus 2"),
        ("megatron_lm_plugin=object()", "--strategy none"),
    ],
)  # fmt: skip
def test_another_distribution_is_refused(arguments: str, line: str) -> None:
    shared = notebook(SETUP, prelude="")
    cell = f"""
    from accelerate import DeepSpeedPlugin, ParallelismConfig
    from accelerate.utils import TorchTensorParallelPlugin
    Accelerator({arguments})
    """
    with pytest.raises(StrategyError, match=rf"=\.\.\..*\n.*\nTry: %%mgpu {re.escape(line)}$"):
        nbmgpu.run(textwrap.dedent(cell), shared, gpus=2, cpu=True)


DATASETS = """
import datasets, os, time
data = datasets.load_dataset("json", data_files="rows.json", split="train", cache_dir="cache")

def slow(row):
    with open("/proc/self/stat") as stat:
        pid = stat.read().split()[0]
    os.system(f"echo {pid} >> calls.txt")
    return {"y": row["x"] * 2}

doubled = data.map(slow)
even = doubled.filter(lambda row: row["y"] % 4 == 0)
total = sum(even["y"])
try:
    data.map(lambda row: 1 / 0)
except ZeroDivisionError:
    failed = True
doubled.save_to_disk("saved")
read = len(datasets.load_from_disk("saved"))
"""


def test_datasets_are_read_and_mapped_once(tmp_path: Path) -> None:
    shared = notebook(prelude="")
    (tmp_path / "rows.json").write_text("\n".join(f'{{"x": {i}}}' for i in range(6)))
    with working_directory(tmp_path):
        run = nbmgpu.run(DATASETS, shared, gpus=2, cpu=True)
    for rank in (0, 1):
        assert run.results[rank]["total"] == 12
        assert run.results[rank]["read"] == 6
        assert run.results[rank]["failed"] is True
    assert len(set((tmp_path / "calls.txt").read_text().split())) == 1


METRICS = """
import torchmetrics
seen, evaluated = torchmetrics.SumMetric(), torchmetrics.SumMetric()
model, opt, loader, _ = objects()
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    if trained:
        seen.update(float(len(x)))
with torch.no_grad():
    for x, y in val:
        evaluated.update(float(len(x)))
count = evaluated.compute().item()
"""


@pytest.mark.parametrize("trained", [True, False])
def test_a_metric_of_a_training_loop_covers_the_ranks_shard(trained: bool) -> None:
    shared = notebook(SETUP + f"trained = {trained}\n", prelude="")
    run = nbmgpu.run(METRICS, shared, gpus=2, cpu=True, exact="never")
    assert shared["count"] == 45
    assert ("sharded-metric" in run.view.notices) == trained
