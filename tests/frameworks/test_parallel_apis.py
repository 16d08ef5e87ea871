"""Cells that distribute a model by torch, DeepSpeed or Fabric: right numbers, or refused."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import run_both
from idioms.notebook import notebook

import nbmgpu
from nbmgpu.errors import StrategyError

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, in this process

SETUP = """
import os, torch
import torch.nn.functional as F
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
loader = DataLoader(TensorDataset(torch.randn(42, 8), torch.randn(42, 4)), 8)
opt = None
"""
TRAIN = """
opt = opt or torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
TENSOR_PARALLEL = """
from torch.distributed.tensor.parallel import *
mesh = torch.distributed.init_device_mesh("cpu", (2,){names})
plan = {{"0": ColwiseParallel(), "2": RowwiseParallel()}}
parallelize_module(model, mesh, plan)
"""
PIPELINE = """
from torch.distributed.pipelining import PipelineStage
PipelineStage(model, 0, 2, torch.device("cpu"))
"""
DEEPSPEED = """
import deepspeed
deepspeed.initialize(model=model, config={"zero_optimization": {"stage": 3}})
"""
FABRIC = """
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
Fabric(strategy=ModelParallelStrategy(lambda model, mesh: model, 2, 2))
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
"""
REFUSED = {
    "parallelize_module": (TENSOR_PARALLEL.format(names=""), "ddp", "tp --gpus 2"),
    "names of dimensions": (
        TENSOR_PARALLEL.format(names=', mesh_dim_names=("tensor_parallel",)'),
        "ddp", "tp --gpus 2",
    ),
    "fully_shard": (
        "from torch.distributed.fsdp import fully_shard\nfully_shard(model)", "tp", "fsdp --gpus 2",
    ),
    "replicate": (
        "from torch.distributed._composable.replicate import replicate\nreplicate(model)",
        "fsdp", "ddp",
    ),
    "ZeroRedundancyOptimizer": (ZERO, "tp", "zero1"),
    "PipelineStage": (PIPELINE, "ddp", "pp"),
    "deepspeed.initialize": (DEEPSPEED, "ddp", "deepspeed_stage_3"),
    "Fabric": (FABRIC, "ddp", "fsdp+tp --mesh fsdp=2,tp=2 --gpus 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_another_distribution_is_refused(name: str) -> None:
    distribute, strategy, instead = REFUSED[name]
    with pytest.raises(StrategyError) as error:
        nbmgpu.run(distribute + TRAIN, notebook(SETUP), gpus=2, cpu=True, strategy=strategy)
    assert str(error.value).endswith(f"%%mgpu --strategy {instead}")
    assert "--strategy none" in str(error.value)


OWN_GROUP = """
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
"""
END = """
if "RANK" in os.environ:
    dist.destroy_process_group()
    model = model.module
"""


@pytest.mark.parametrize("strategy", ["ddp", "tp", "fsdp"])
def test_a_cell_for_torchrun_has_the_process_group_of_the_ranks(strategy: str) -> None:
    result = run_both(OWN_GROUP + TRAIN + END, SETUP, 2, strategy=strategy)
    assert result.difference("model") < 1e-6


ON_FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt = fabric.setup(model, opt)
for x, y in fabric.setup_dataloaders(loader):
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    fabric.backward(loss)
    opt.step()
model = model.module
del opt, fabric
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tp"])
def test_a_fabric_trains_as_on_one_device(strategy: str) -> None:
    result = run_both(ON_FABRIC, SETUP, 2, strategy=strategy)
    assert result.difference("model") < 1e-6


def test_dtensors_of_a_cell_stay_on_the_ranks_and_whole_tensors_come_back() -> None:
    cell = TENSOR_PARALLEL.format(names="") + (
        "weight = model[0].weight\n"
        "whole = {k: getattr(v, 'full_tensor', lambda: v)() for k, v in model.state_dict().items()}"
    )
    names = notebook(SETUP)
    before = {k: v.clone() for k, v in names["model"].state_dict().items()}
    run = nbmgpu.run(cell, names, gpus=2, cpu=True, strategy="none")
    lost = ["lost:weight", "lost:model.2._parameters['bias']"]
    assert all("full_tensor()" in run.view.notices[name].text for name in lost)
    torch.testing.assert_close(names["whole"], before)
