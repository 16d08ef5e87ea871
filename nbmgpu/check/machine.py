"""Checks of the machine and the environment: devices, their links, NCCL, and a real notebook."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

import torch

from nbmgpu.devices.probe import probe, torch_build
from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.options.run_options import RunOptions

from .cells import MLP, TRAIN
from .check import Check, CheckSkipped, Finding
from .comparison import PRELUDE, run_on_ranks
from .setting import Setting

NOTEBOOK_TIMEOUT = 180
"""Seconds for a cell of the notebook."""

REDUCE = """
import torch.distributed as dist
total = torch.full((1 << 20,), float(dist.get_rank() + 1), device=device)
dist.all_reduce(total)
backend = dist.get_backend_config()
value = total[0].item()
nccl = device.type == "cuda" and ".".join(map(str, torch.cuda.nccl.version()))
"""


def checks() -> list[Check]:
    """Return the checks of this group."""
    return [
        Check("machine", "devices", _devices),
        Check("machine", "links between GPUs", _links),
        Check("machine", "a sum over all ranks", _sum),
        Check("machine", "a notebook in a real kernel", _notebook),
    ]


def _devices(setting: Setting) -> Finding:
    machine, build = probe(), torch_build()
    assert build is not None
    names = sorted({gpu.name for gpu in machine.gpus})
    memory = sum(gpu.memory_total for gpu in machine.gpus)
    what = f"{format_count(len(machine.gpus), 'GPU')} ({', '.join(names)})" if names else "no GPU"
    if setting.gpus:
        seen = torch.accelerator.device_count()
        assert seen == len(machine.gpus), f"torch sees {seen} GPUs, the driver {len(machine.gpus)}"
    if setting.on_cuda:
        for index, gpu in enumerate(machine.gpus):
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            assert uuid in gpu.uuid, (
                f"GPU {index} is {uuid} for torch and {gpu.uuid} for the driver. "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID makes the orders equal"
            )
    text = f"{what}; torch {build.version}, {build.label}"
    return Finding(text, {"gpus": len(machine.gpus), "memory": memory, "why_not": machine.why_not})


def _links(setting: Setting) -> Finding:
    setting.require_cuda()
    if setting.gpus < 2:
        raise CheckSkipped("there are not several GPUs")
    pairs = [(a, b) for a in range(setting.gpus) for b in range(setting.gpus) if a != b]
    peers = sum(torch.cuda.can_device_access_peer(a, b) for a, b in pairs)
    topology = ""
    if (program := shutil.which("nvidia-smi")) is not None:
        command = [program, "topo", "-m"]
        topology = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False
        ).stdout
    text = f"{peers} of {len(pairs)} pairs of GPUs access each other's memory"
    return Finding(text, {"peers": peers, "topology": topology})


def _sum(setting: Setting) -> Finding:
    ranks = setting.most_ranks
    names: dict[str, Any] = {}
    exec(PRELUDE.format(device=setting.device), names)
    run_on_ranks(REDUCE, names, setting, ranks, strategy="none")
    expected = ranks * (ranks + 1) / 2
    assert names["value"] == expected, f"the sum is {names['value']} instead of {expected}"
    text = f"{format_count(ranks, 'rank')}, {names['backend']}"
    return Finding(text, {"nccl": names["nccl"] or "", "ranks": ranks})


def _notebook(setting: Setting) -> Finding:
    """Run the magic in a kernel that holds the model on its own GPU, as users do."""
    from jupyter_client.manager import start_new_kernel

    prelude = "torch.backends.cudnn.allow_tf32 = False\n" + PRELUDE.format(device=setting.device)
    cells = [
        "%load_ext nbmgpu",
        "import torch, copy\n" + prelude + MLP + "start = copy.deepcopy(model.state_dict())",
        TRAIN + "alone = copy.deepcopy(model.state_dict())",
        "model.load_state_dict(start)\nopt = torch.optim.SGD(model.parameters(), 0.1, 0.9)",
        f"{RunOptions.of(**setting.options(2)).command}\n{TRAIN}",
        "worst = max((alone[n] - p).abs().max().item() for n, p in model.state_dict().items())\n"
        "assert worst < 1e-5, worst\nprint(format(worst, '.1e'), next(model.parameters()).device)",
    ]
    manager, client = start_new_kernel()
    try:
        begun, text = time.monotonic(), ""
        for cell in cells:
            outputs: list[dict[str, Any]] = []
            reply = client.execute_interactive(
                cell, timeout=NOTEBOOK_TIMEOUT, output_hook=outputs.append, allow_stdin=False
            )
            content = reply["content"]
            if content["status"] != "ok":
                raise AssertionError(f"{content.get('ename')}: {content.get('evalue')}")
            text = "".join(o["content"].get("text", "") for o in outputs)
        seconds = time.monotonic() - begun
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    free = sum(gpu.memory_free for gpu in probe().gpus) if setting.gpus else 0
    where = f"; {format_bytes(free)} free afterwards" if free else ""
    return Finding(f"largest difference {text.strip()}{where}", {"seconds": round(seconds, 1)})
