"""Measures time and memory beside the same loop by hand; warns of steps that take longer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from .check import Check, CheckSkipped, Finding
from .comparison import run_on_ranks
from .setting import Setting
from .step_ratio import in_turns
from .timed_loops import MODEL, OURS, PROFILED, by_hand, ours, plain, sizes

SCALING_ROUNDS = 3
"""Measurements with each number of ranks."""

STEPS = f"{PROFILED[0]}-{PROFILED[-1]}"
"""The profiled steps, as ``--profile`` takes them."""


def checks() -> list[Check]:
    """Return the checks of this group."""
    functions: dict[str, Callable[[Setting], Finding]] = {
        "launch": _launch,
        "a step on one rank, beside the plain loop": _one_rank,
        "a step of ddp, beside DDP by hand": lambda setting: _beside("ddp", setting),
        "a step of fsdp, beside FSDP2 by hand": lambda setting: _beside("fsdp", setting),
        "a step of DeepSpeed's stage 2, beside DeepSpeed by hand": lambda setting: _beside(
            "deepspeed_stage_2", setting
        ),
        "communication hidden behind computing": _overlap,
        "ddp on more and more ranks": _scaling,
        "synchronizations per step": _synchronizations,
        "1 GiB of the notebook's tensors": _transfer,
    }
    return [Check("speed", name, function) for name, function in functions.items()]


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


def _one_rank(setting: Setting) -> Finding:
    found = in_turns(lambda: ours(setting, 1), lambda: plain(setting))
    return found.finding("the plain loop", setting, 1)


def _beside(strategy: str, setting: Setting) -> Finding:
    setting.require_strategy(strategy)
    if strategy.startswith("deepspeed") and not setting.gpus:
        raise CheckSkipped("needs a GPU: on the CPU, DeepSpeed by hand compiles for a minute first")
    ranks = _all_ranks(setting)
    found = in_turns(
        lambda: ours(setting, ranks, strategy), lambda: by_hand(setting, ranks, strategy)
    )
    return found.finding("by hand", setting, ranks)


def _all_ranks(setting: Setting) -> int:
    """Return the number of ranks of steps that are timed."""
    return min(2, setting.most_ranks) if setting.shared or not setting.gpus else setting.gpus


def _overlap(setting: Setting) -> Finding:
    """Measure the share of the communication that is hidden behind computing."""
    if setting.gpus < 2:  # CPU ranks add up gradients themselves, in shared memory
        raise CheckSkipped("needs 2 GPUs")
    ranks = setting.gpus
    own, other = ours(setting, ranks, profile=STEPS), by_hand(setting, ranks, profile=True)
    if not any(each["hidden"] + each["communication"] for each in (own, other)):
        raise CheckSkipped(f"torch's profiler records nothing of {setting.kind} devices")
    found = {}
    for name, measured in ("ours", own), ("other", other):
        total = measured["hidden"] + measured["communication"]
        found[name] = measured["hidden"] / total if total else 0.0
    text = f"{found['ours']:.0%} of ddp's communication on {ranks} ranks, DDP by hand "
    return Finding(text + f"{found['other']:.0%}", dict(found))


def _scaling(setting: Setting) -> Finding:
    """Measure how much quicker the same batch is on more ranks."""
    if setting.shared:
        raise CheckSkipped("needs 2 GPUs")
    most = setting.gpus or 2
    counts = [ranks for ranks in (1, 2, 4, 8) if ranks <= most]
    rounds: list[dict[str, float]] = []
    for _ in range(SCALING_ROUNDS):
        steps = {}
        for ranks in counts:
            steps[f"ours, {ranks}"] = ours(setting, ranks)["step"]
            steps[f"other, {ranks}"] = by_hand(setting, ranks)["step"]
        rounds.append({key: steps[f"{key.split(',')[0]}, 1"] / steps[key] for key in steps})
    values: dict[str, float | str] = {
        key: statistics.median(each[key] for each in rounds) for key in rounds[0]
    }
    parts = [
        f"{ranks}: {values[f'ours, {ranks}']:.2f} x, by hand {values[f'other, {ranks}']:.2f} x"
        for ranks in counts
    ]
    return Finding("; ".join(parts[1:]), values)


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
    setting.require_cuda()
    counts: dict[str, float | str] = {}
    for name, ranks in ("ddp on one rank", 1), ("ddp", 2):
        names: dict[str, Any] = {}
        exec(MODEL.format(**sizes(setting, ranks)) + OURS, names)
        names["loader"] = type(names["loader"])(names["dataset"], names["batch"], pin_memory=True)
        run_on_ranks(COUNT, names, setting, ranks, verify=0)
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
