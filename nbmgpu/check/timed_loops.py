"""A training loop whose steps are timed: under nbmgpu, and written by hand for torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .comparison import run_on_ranks
from .session import end_session
from .setting import Setting

MODEL = """
import statistics, time, torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))

torch.manual_seed(0)
device, width, depth, batch = torch.device("{device}"), {width}, {depth}, {batch}
model = nn.Sequential(*(Block(width) for _ in range(depth)), nn.Linear(width, 10)).to(device)
dataset = torch.utils.data.TensorDataset(
    torch.randn({steps} * batch, width), torch.randint(0, 10, ({steps} * batch,)))
"""
"""A model of blocks; format fields: device, width, depth, batch, steps."""

STEP = """\
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
LOOP = f"""
torch.set_num_threads(1)  # a rank has more, if there are cores: both sides have the same

def wait():
    if device.type != "cpu":
        torch.accelerator.synchronize()

times, host = [], []
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        if i % 10 == 0:
            wait()
            times.append(time.perf_counter())
            host.append(time.thread_time())
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), y)
{STEP}later = len(times) // 4  # the first ones are the warm-up
step = statistics.median(b - a for a, b in zip(times[later:], times[later + 1:])) / 10
cpu = statistics.median(b - a for a, b in zip(host[later:], host[later + 1:])) / 10
peak = 0 if device.type == "cpu" else torch.get_device_module(device).max_memory_allocated()
"""
"""The loop whose steps are timed, ten at a time; the same for nbmgpu and by hand."""

OURS = """
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(dataset, batch)
"""

BY_HAND = """
import json, os, sys
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if device.type != "cpu":
    torch.get_device_module(device).set_device(rank % torch.accelerator.device_count())
dist.init_process_group("{backend}")
{wrap}
sampler = DistributedSampler(dataset, shuffle=False)
loader = torch.utils.data.DataLoader(dataset, batch // size, sampler=sampler)
hidden = communication = 0.0
{loop}
if rank == 0:
    print(json.dumps(dict(
        step=step, cpu=cpu, peak=peak, hidden=hidden, communication=communication)))
dist.destroy_process_group()
"""
"""A script for torchrun; format fields: backend, wrap, loop."""

ADAMW = "torch.optim.AdamW(model.parameters(), lr=1e-4)"
OPTIMIZER = f"opt = {ADAMW}"
DEEPSPEED = f"""
import deepspeed
deepspeed.utils.logging.logger.setLevel("ERROR")
model, opt, _, _ = deepspeed.initialize(model=model, optimizer={ADAMW}, config={{
    "train_micro_batch_size_per_gpu": batch // size, "zero_optimization": {{"stage": 2}},
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}})
"""
WRAPPED = {
    "ddp": f"model = nn.parallel.DistributedDataParallel(model)\n{OPTIMIZER}",
    "fsdp": "from torch.distributed.fsdp import fully_shard\n"
    f"for block in model:\n    fully_shard(block)\nfully_shard(model)\n{OPTIMIZER}",
    "deepspeed_stage_2": DEEPSPEED,
}
"""How a strategy is written by hand."""

STEPS = {"deepspeed_stage_2": "        model.backward(loss)\n        model.step()\n"}
"""Steps that are written in another way than ``STEP``."""

PROFILED = range(5, 11)
"""The steps that are profiled, from 1."""

PROFILED_LOOP = f"""
from torch import profiler
from nbmgpu.rank.profiling.step_parts import step_parts, traced_spans

def read(finished):
    global hidden, communication
    spans = traced_spans(finished.profiler.kineto_results.events())
    parts = step_parts(spans, {len(PROFILED)}, device.type == "cuda")
    hidden, communication = parts.hidden, parts.communication

with profiler.profile(
    schedule=profiler.schedule(
        wait={PROFILED[0] - 2}, warmup=1, active={len(PROFILED)}, repeat=1),
    on_trace_ready=read,
) as running:
{{loop}}
"""
"""``LOOP`` with torch's profiler around it; it calls ``running.step()`` after each step."""

SCRIPT_TIMEOUT = 90
"""Seconds for a script by hand."""


def sizes(setting: Setting, ranks: int) -> dict[str, Any]:
    """Return the format fields of ``MODEL``: a step of some milliseconds."""
    if setting.gpus and (not setting.shared or ranks == 1):
        return {"device": setting.device, "width": 1024, "depth": 12, "batch": 512, "steps": 60}
    if setting.gpus:  # gloo sums gradients on the host: a small model
        return {"device": setting.device, "width": 256, "depth": 4, "batch": 256, "steps": 40}
    return {"device": "cpu", "width": 64, "depth": 4, "batch": 32, "steps": 40}


def model_source(setting: Setting, ranks: int, profiled: bool) -> str:
    """Return the source of the model; of a profiled one, gradients fill several buckets."""
    found = sizes(setting, ranks)
    if profiled and not setting.gpus:  # more than 25 MiB, as on GPUs
        found |= {"width": 512, "depth": 8, "steps": 20}
    return MODEL.format(**found)


def ours(
    setting: Setting, ranks: int, strategy: str = "ddp", profile: str = ""
) -> dict[str, float]:
    """Return seconds and bytes of a step under nbmgpu; with ``profile``, its steps are profiled."""
    names: dict[str, Any] = {}
    exec(model_source(setting, ranks, bool(profile)) + OURS, names)
    options: dict[str, Any] = {"verify": 0} | ({"profile": profile} if profile else {})
    run = run_on_ranks(LOOP, names, setting, ranks, strategy=strategy, timeout=300, **options)
    found = {name: float(names[name]) for name in ("step", "cpu", "peak")}
    if run is not None and (rows := run.profile.rows):
        found |= {"hidden": rows[0].hidden, "communication": rows[0].communication}
    return found


def plain(setting: Setting) -> dict[str, float]:
    """Return the same of the plain loop, in a process of its own."""
    script = model_source(setting, 1, profiled=False) + OURS + LOOP
    script += "\nimport json\nprint(json.dumps(dict(step=step, cpu=cpu, peak=peak)))"
    return _run_script(script, [sys.executable])


def by_hand(
    setting: Setting, ranks: int, strategy: str = "ddp", profile: bool = False
) -> dict[str, float]:
    """Return the same of a script that uses DDP, FSDP2 or DeepSpeed itself."""
    backend = "gloo" if setting.shared else dist.get_default_backend_for_device(setting.device)
    step = STEPS.get(strategy, STEP)
    loop = LOOP.replace(STEP, step)
    if profile:
        profiled = loop.replace(step, step + "        running.step()\n")
        loop = PROFILED_LOOP.format(loop=textwrap.indent(profiled, "    "))
    script = model_source(setting, ranks, profile) + BY_HAND.format(
        backend=backend, wrap=WRAPPED[strategy], loop=loop
    )
    launcher = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1"),
        *(f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
    ]
    return _run_script(script, launcher)


def _run_script(script: str, command: list[str]) -> dict[str, float]:
    """Run a script in new processes and return the JSON that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(script)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        with output.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [*command, str(path)], stdout=out, stderr=err, env=environment,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(SCRIPT_TIMEOUT)
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"the script by hand did not end in {SCRIPT_TIMEOUT} s: "
                    f"{errors.read_text()[-300:]}"
                ) from None
            finally:
                end_session(process)
        lines = [line for line in output.read_text().splitlines() if line.startswith("{")]
        assert lines, f"the script by hand failed: {errors.read_text()[-300:]}"
    found: dict[str, float] = json.loads(lines[-1])
    return found
