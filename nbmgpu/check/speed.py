"""Measures time and memory beside the same loop written by hand; asserts nothing about speed."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbmgpu.devices.requirements import missing_requirement
from nbmgpu.formatting import format_bytes
from nbmgpu.strategies import profile_of

from .check import Check, CheckSkipped, Finding
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

LOOP = """
def wait():
    if device.type == "cuda":
        torch.cuda.synchronize()

times, host = [], []
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        if i % 10 == 0:
            wait()
            times.append(time.perf_counter())
            host.append(time.thread_time())
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
later = len(times) // 4  # the first ones are the warm-up
step = statistics.median(b - a for a, b in zip(times[later:], times[later + 1:])) / 10
cpu = statistics.median(b - a for a, b in zip(host[later:], host[later + 1:])) / 10
peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
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
if device.type == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("{backend}")
{wrap}
sampler = DistributedSampler(dataset, shuffle=False)
loader = torch.utils.data.DataLoader(dataset, batch // size, sampler=sampler)
{loop}
if rank == 0:
    print(json.dumps(dict(step=step, cpu=cpu, peak=peak)))
dist.destroy_process_group()
"""
"""A script for torchrun; format fields: backend, wrap, loop."""

OPTIMIZER = "opt = torch.optim.AdamW(model.parameters(), lr=1e-4)"
WRAPPED = {
    "ddp": f"model = nn.parallel.DistributedDataParallel(model)\n{OPTIMIZER}",
    "fsdp": "from torch.distributed.fsdp import fully_shard\n"
    f"for block in model:\n    fully_shard(block)\nfully_shard(model)\n{OPTIMIZER}",
}
"""How a strategy is written by hand."""


SCRIPT_TIMEOUT = 90
"""Seconds for a script by hand."""


def checks() -> list[Check]:
    """Return the checks of this group."""
    functions: dict[str, Callable[[Setting], Finding]] = {
        "launch": _launch,
        "a step on one rank, beside the plain loop": _one_rank,
        "a step of ddp, beside DDP by hand": lambda setting: _beside("ddp", setting),
        "a step of fsdp, beside FSDP2 by hand": lambda setting: _beside("fsdp", setting),
        "synchronizations per step": _synchronizations,
        "1 GiB of the notebook's tensors": _transfer,
    }
    return [Check("speed", name, function) for name, function in functions.items()]


def _sizes(setting: Setting, ranks: int) -> dict[str, Any]:
    """Return the format fields of ``MODEL``: a step of some milliseconds."""
    if setting.gpus and (not setting.shared or ranks == 1):
        return {"device": "cuda", "width": 1024, "depth": 12, "batch": 512, "steps": 60}
    if setting.gpus:  # gloo sums gradients on the host: a small model
        return {"device": "cuda", "width": 256, "depth": 4, "batch": 256, "steps": 40}
    return {"device": "cpu", "width": 64, "depth": 4, "batch": 32, "steps": 40}


def _launch(setting: Setting) -> Finding:
    def seconds(strategy: str) -> float:
        begun = time.perf_counter()
        run_on_ranks("value = 1", {}, setting, strategy=strategy)
        return time.perf_counter() - begun

    empty = statistics.median(seconds("ddp") for _ in range(5))
    names: dict[str, Any] = {}
    used = []
    for _ in range(3 if setting.gpus else 1):
        begun = time.perf_counter()
        source = f"import torch\nvalue = torch.ones(9, device='{setting.device}').sum().item()"
        run_on_ranks(source, names, setting)
        used.append(time.perf_counter() - begun)
    text = f"{empty:.2f} s for an empty cell, {statistics.median(used):.2f} s with a GPU tensor"
    values: dict[str, float | str] = {"empty": empty, "with_tensor": statistics.median(used)}
    return Finding(text if setting.gpus else f"{empty:.2f} s for an empty cell", values)


def _ours(setting: Setting, ranks: int, strategy: str = "ddp") -> dict[str, float]:
    names: dict[str, Any] = {}
    exec(MODEL.format(**_sizes(setting, ranks)) + OURS, names)
    run_on_ranks(LOOP, names, setting, ranks, strategy=strategy, timeout=300)
    return {name: float(names[name]) for name in ("step", "cpu", "peak")}


def _one_rank(setting: Setting) -> Finding:
    ours = min((_ours(setting, 1) for _ in range(2)), key=lambda each: each["step"])
    plain = []
    for _ in range(2):
        script = MODEL.format(**_sizes(setting, 1)) + OURS + LOOP
        script += "\nimport json\nprint(json.dumps(dict(step=step, cpu=cpu, peak=peak)))"
        plain.append(_run_script(script, [sys.executable]))
    return _ratio(ours, min(plain, key=lambda each: each["step"]), "the plain loop")


def _beside(strategy: str, setting: Setting) -> Finding:
    if (missing := missing_requirement(profile_of(strategy))) is not None:
        raise CheckSkipped(f"needs {missing.needed}")
    ranks = min(2, setting.most_ranks) if setting.shared or not setting.gpus else setting.gpus
    backend = "nccl" if setting.gpus > 1 else "gloo"
    script = MODEL.format(**_sizes(setting, ranks)) + BY_HAND.format(
        backend=backend, wrap=WRAPPED[strategy], loop=LOOP
    )
    launcher = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1"),
        *(f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
    ]
    by_hand = min((_run_script(script, launcher) for _ in range(2)), key=lambda each: each["step"])
    ours = min((_ours(setting, ranks, strategy) for _ in range(2)), key=lambda each: each["step"])
    return _ratio(ours, by_hand, "by hand", f" on {ranks} ranks")


def _ratio(ours: dict[str, float], other: dict[str, float], name: str, where: str = "") -> Finding:
    ratio = ours["step"] / other["step"]
    extra = (ours["cpu"] - other["cpu"]) * 1e6
    text = (
        f"{ours['step'] * 1e3:.2f} ms{where}, {ratio:.3f} x {name} "
        f"({other['step'] * 1e3:.2f} ms); {extra:+.0f} us of the host"
    )
    if other["peak"]:
        text += f"; {format_bytes(ours['peak'])} at most, {name} {format_bytes(other['peak'])}"
    values: dict[str, float | str] = {f"ours_{k}": v for k, v in ours.items()}
    return Finding(text, values | {f"other_{k}": v for k, v in other.items()} | {"ratio": ratio})


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


COUNT = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for i, (x, y) in enumerate(loader):
        if i == 20:
            caught.clear()
            torch.cuda.set_sync_debug_mode("warn")
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.cuda.set_sync_debug_mode("default")
    caught = [w for w in caught if "called a synchronizing" in str(w.message)]
    syncs = len(caught) / (i + 1 - 20)
    places = sorted({f"{w.filename.rsplit('/', 1)[-1]}:{w.lineno}" for w in caught})
"""


def _synchronizations(setting: Setting) -> Finding:
    """Count what waits for the GPU in a step whose cell never does."""
    if not setting.gpus:
        raise CheckSkipped("needs a GPU")
    counts: dict[str, float | str] = {}
    for name, ranks in ("ddp on one rank", 1), ("ddp", 2):
        names: dict[str, Any] = {}
        exec(MODEL.format(**_sizes(setting, ranks)) + OURS, names)
        names["loader"] = type(names["loader"])(names["dataset"], names["batch"], pin_memory=True)
        run_on_ranks(COUNT, names, setting, ranks)
        counts[name] = names["syncs"]
        if names["places"]:
            counts[f"{name}, places"] = ", ".join(names["places"])[:300]
    return Finding("; ".join(f"{name}: {value}" for name, value in counts.items()), counts)


def _transfer(setting: Setting) -> Finding:
    import torch

    data = torch.randn(1 << 28, device=setting.device)
    source = "total = data[:: 1 << 20].sum().item()"
    begun = time.perf_counter()
    names = {"data": data}
    run_on_ranks(source, names, setting)
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    run_on_ranks(source, names, setting)
    again = time.perf_counter() - begun
    text = f"{first:.2f} s for a cell that reads them, {again:.2f} s the second time"
    return Finding(text, {"first": first, "again": again})
