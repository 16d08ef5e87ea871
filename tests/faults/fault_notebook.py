"""The notebook of these tests: it runs cells when it is asked to, and says what became of them.

It is imported by a plain Python process (``main``), or by a kernel, which calls ``answer``.  Ranks
import it as well, for the classes of the objects that they are sent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu

FOLDER = Path(os.environ.get("FAULTS_FOLDER", "."))
GO = FOLDER / "go"
"""Who holds goes on when this file exists."""

BATCH, SAMPLES = 8, 80
STEPS = SAMPLES // BATCH

TRAIN = """
import os, time
import torch.distributed as dist
for step, (x, y) in enumerate(loader):
    if step == hold_at and dist.get_rank() in holding:
        hold()
    elif step == hold_at:
        print(HELD, flush=True)
    if step == hold_at and in_barrier:
        dist.barrier()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

HELD = "this process holds"
"""A rank prints this when it is where it shall be hit; a kernel writes a file instead."""


def hold() -> None:
    """Compute, until it may go on."""
    if "RANK" in os.environ:
        print(HELD, flush=True)
    else:
        (FOLDER / "held").touch()
    while not GO.exists():
        (torch.ones(50, 50) @ torch.ones(50, 50)).sum()
        time.sleep(0.005)


class Packed:
    """An object that is pickled slowly in the kernel."""

    def __getstate__(self) -> dict[str, int]:
        if "RANK" not in os.environ:
            hold()
        return {"answer": 42}


class Returned:
    """An object that ``rank`` pickles slowly; with rank -1 the kernel unpickles it slowly."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __getstate__(self) -> dict[str, Any]:
        if os.environ.get("RANK") == str(self.rank):
            hold()
        return {"rank": self.rank}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.rank = state["rank"]
        if self.rank == -1 and "RANK" not in os.environ:
            hold()


def objects(width: int = 64, samples: int = SAMPLES) -> dict[str, Any]:
    """Return the objects of a training cell; they are the same each time."""
    torch.manual_seed(0)
    model = nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(samples, width), torch.randint(0, 8, (samples,)))
    loader = DataLoader(data, batch_size=BATCH)
    return {"model": model, "optimizer": optimizer, "loader": loader}


def weights_after_each_step(width: int, samples: int) -> list[torch.Tensor]:
    """Return a part of the weights before training, and after each step on one device."""
    names = objects(width, samples)
    found = [seen(names)]
    for x, y in names["loader"]:
        names["optimizer"].zero_grad()
        nn.functional.cross_entropy(names["model"](x), y).backward()
        names["optimizer"].step()
        found.append(seen(names))
    return found


def seen(names: dict[str, Any]) -> torch.Tensor:
    return names["model"].weight.detach()[:8, :8].clone()


expected: dict[tuple[int, int], list[torch.Tensor]] = {}
names: dict[str, Any] = {}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run a cell; return its error, and after how many steps the weights are as they are.

    Args:
        request: ``cell`` and ``options``; ``width`` and ``samples`` of the model and its data;
            ``names``, further values of the notebook, as source; ``again``, to keep the names
            of the last cell.  Or ``source``, which the notebook runs itself.
    """
    size = request.get("width", 64), request.get("samples", SAMPLES)
    if size not in expected:
        expected[size] = weights_after_each_step(*size)
    if not request.get("again"):
        names.clear()
        names.update(objects(*size), __name__="__main__", nn=nn, torch=torch)
        names.update(
            {"hold": hold, "HELD": HELD, "hold_at": -1, "holding": (0, 1), "in_barrier": False}
        )
        names.update({n: eval(source) for n, source in request.get("names", {}).items()})
    error, text = "", ""
    try:
        if "source" in request:
            exec(request["source"], names)
        else:
            nbmgpu.run(request["cell"], names, **{"gpus": 2, "cpu": True, **request["options"]})
    except BaseException as raised:
        error, text = type(raised).__name__, f"{raised}\n{raised.__cause__ or ''}"
    weights = seen(names)
    steps = [
        step
        for step, of_step in enumerate(expected[size])
        if torch.allclose(weights, of_step, atol=1e-6)
    ]
    run = nbmgpu.last_run
    return {
        "error": error,
        "text": text,
        "steps": steps[0] if steps else -1,
        "run": run.id if run else "",
        "value": repr(names.get("answer")),
        "notices": {n.topic: n.text for n in run.view.notices.values()} if run else {},
    }


def main() -> None:
    """Answer the requests on the standard input, one line of JSON each."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()
