"""A step under tp, pp, sp, fsdp and fsdp+tp, compared with the same strategy written by hand."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from benchmarks.kernels import Kernel
from benchmarks.measure import BY_HAND, Figure, Result, kernels
from benchmarks.tools import OURS

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

def attention(q, k, v):  # [batch, sequence, heads, 64]
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.attend = attention

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (-1, 64)) for each in (self.q, self.k, self.v))
        return self.out(self.attend(q, k, v).flatten(2))

class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

class GPT(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1024)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
"""

MAKE = """
torch.manual_seed(0)
model = GPT({width}, {depth})
tokens = torch.randint(0, 1024, ({steps} * {batch}, {sequence} + 1))
loader = torch.utils.data.DataLoader(tokens, {batch})
"""

STEPS = """
import statistics, time
{setup}
opt = torch.optim.SGD(parameters, lr=0.01)
begun, busy = [time.perf_counter()], [time.process_time()]
for batch in loader:
    x, y = batch[:, :-1], batch[:, 1:]
    opt.zero_grad()
    {step}
    opt.step()
    last = loss.item()
    begun.append(time.perf_counter())
    busy.append(time.process_time())
step, cpu = (
    1000 * statistics.median(b - a for a, b in zip(t[3:], t[4:])) for t in (begun, busy))
{end}
"""
"""Milliseconds per step, also of CPU time, without the first three: nbmgpu tries layers there."""

PP_END = "dist.all_reduce(last := torch.tensor(last)); last = last.item()"

PLAIN_SETUP = "parameters = model.parameters()"

PLAIN_STEP = """
loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
loss.backward()
"""

TP_SETUP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)
mesh = init_device_mesh("cpu", ({ranks} // 2, 2), mesh_dim_names=("fsdp", "tp"))
plan = {{"embed": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate())}}
for name in ("attention.q", "attention.k", "attention.v", "mlp.fc1"):
    plan["blocks.*." + name] = ColwiseParallel()
for name in ("attention.out", "mlp.fc2"):
    plan["blocks.*." + name] = RowwiseParallel()
parallelize_module(model, mesh["tp"], plan)
parameters = list(model.parameters())
"""

FSDP_SETUP = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
parameters = list(model.parameters())
"""

FSDP_STEP = """
x, y = (each.chunk({ranks})[dist.get_rank()] for each in (x, y))
loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
loss.backward()
dist.all_reduce(loss := loss.detach() / {ranks})
"""

FSDP_TP_SETUP = f"""{TP_SETUP}
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block, mesh=mesh["fsdp"])
fully_shard(model, mesh=mesh["fsdp"])
parameters = list(model.parameters())
"""

FSDP_TP_STEP = """
x, y = (each.chunk({ranks} // 2)[mesh["fsdp"].get_local_rank()] for each in (x, y))
loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
loss.backward()
dist.all_reduce(loss := loss.detach() / {ranks} * 2, group=mesh["fsdp"].get_group())
"""

PP_SETUP = """
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
first, size = dist.get_rank() == 0, len(model.blocks) // 2
blocks = model.blocks[:size] if first else model.blocks[size:]
stage = nn.Sequential(model.embed, *blocks) if first else nn.Sequential(
    *blocks, model.norm, model.head)
schedule = ScheduleGPipe(
    PipelineStage(stage, dist.get_rank(), 2, torch.device("cpu")), n_microbatches=4,
    loss_fn=lambda output, y: F.cross_entropy(output.flatten(0, 1), y.flatten()))
parameters = list(stage.parameters())
"""

PP_STEP = """
losses = []
schedule.step(x) if first else schedule.step(target=y, losses=losses)
loss = sum(losses) / 4 if losses else torch.zeros(())  # the last rank has it
"""

SP_SETUP = """
import functools
import deepspeed
import torch.distributed as dist
from deepspeed.sequence.layer import DistributedAttention
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
deepspeed.init_distributed(dist_backend="gloo")
for block in model.blocks:
    distributed = DistributedAttention(attention, dist.group.WORLD, 2, 1)
    block.attention.attend = functools.partial(distributed, batch_dim_idx=0)
parameters = list(model.parameters())
"""

SP_STEP = """
x, y = (each.chunk(2, dim=1)[dist.get_rank()] for each in (x, y))
loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 2
loss.backward()
gradients = torch.cat([each.grad.flatten() for each in parameters])
dist.all_reduce(gradients)
sizes = [each.numel() for each in parameters]
for each, gradient in zip(parameters, gradients.split(sizes)):
    each.grad = gradient.view_as(each)
dist.all_reduce(loss := loss.detach())
"""


@dataclass(frozen=True)
class Net:
    """A GPT of ``depth`` blocks, and batches of sequences; heads have 64 features."""

    width: int
    depth: int
    batch: int
    sequence: int
    steps: int = 13


@dataclass(frozen=True)
class Case:
    """A strategy, the code that an expert writes instead of it, and the sizes."""

    strategy: str
    by_hand: str
    setup: str
    step: str
    net: Net
    ranks: int = 2


CASES = (
    Case("tp", "parallelize_module", TP_SETUP, PLAIN_STEP, Net(512, 4, 8, 128)),
    Case("tp", "parallelize_module", TP_SETUP, PLAIN_STEP, Net(1024, 4, 4, 128)),
    Case("pp", "ScheduleGPipe", PP_SETUP, PP_STEP, Net(512, 8, 8, 128)),
    Case("pp", "ScheduleGPipe", PP_SETUP, PP_STEP, Net(1024, 8, 8, 64)),
    Case("sp", "DeepSpeed's DistributedAttention", SP_SETUP, SP_STEP, Net(512, 4, 1, 1024)),
    Case("sp", "DeepSpeed's DistributedAttention", SP_SETUP, SP_STEP, Net(512, 4, 1, 2048)),
    Case("fsdp", "fully_shard", FSDP_SETUP, FSDP_STEP, Net(512, 4, 8, 128)),
    Case("fsdp", "fully_shard", FSDP_SETUP, FSDP_STEP, Net(1024, 4, 4, 128)),
    Case(
        "fsdp+tp", "fully_shard, parallelize_module", FSDP_TP_SETUP, FSDP_TP_STEP,
        Net(512, 4, 8, 128), ranks=4,
    ),
)  # fmt: skip


def measure(rounds: int) -> list[Result]:
    """Measure each strategy and the code by hand in turn, on the same ranks with one thread each.

    Raises:
        RuntimeError: the two end with different losses.
    """
    with kernels([OURS], "import torch, json") as running:
        kernel = running[OURS]
        kernel.run(MODEL)
        return [result for case in CASES for result in _compared(kernel, case, rounds)]


def workload(case: Case) -> str:
    """Return the title of the table of ``case``."""
    net = case.net
    return (
        f"a step of {case.strategy} on {case.ranks} ranks, by hand with {case.by_hand}: "
        f"{net.depth} blocks of {net.width}, {net.batch} x {net.sequence} tokens"
    )


def _compared(kernel: Kernel, case: Case, rounds: int) -> list[Result]:
    results: list[Result] = []
    for round_ in range(rounds):
        turn = [("nbmgpu", True), (BY_HAND, False)]
        losses = []
        for tool, ours in turn if round_ % 2 else reversed(turn):
            step, cpu, loss = _step(kernel, case, ours)
            losses.append(loss)
            results.append(Figure(workload(case), tool, step, "ms"))
            results.append(Figure(f"{workload(case)}: CPU time of a rank", tool, cpu, "ms"))
        if not math.isclose(*losses, rel_tol=1e-5):
            raise RuntimeError(f"{case.strategy} and {case.by_hand} end with the losses {losses}")
    return results


def _step(kernel: Kernel, case: Case, ours: bool) -> tuple[float, float, float]:
    """Return the milliseconds of a step, its CPU time, and the last loss."""
    kernel.run(MAKE.format(**vars(case.net)))
    setup, step = (PLAIN_SETUP, PLAIN_STEP) if ours else (case.setup, case.step)
    setup, step = (code.format(ranks=case.ranks).strip() for code in (setup, step))
    end = PP_END if not ours and case.strategy == "pp" else ""
    code = STEPS.format(setup=setup, step=step.replace("\n", "\n    "), end=end)
    strategy = case.strategy if ours else "none"
    flags = f"--cpu --verify 0 --gpus {case.ranks} --strategy {strategy}"
    kernel.run(f"%%mgpu {flags}\ntorch.set_num_threads(1)\n{code}")
    found = json.loads(kernel.run("print(json.dumps([step, cpu, last]))").text)
    measured, busy, loss = found
    return measured, busy, loss
