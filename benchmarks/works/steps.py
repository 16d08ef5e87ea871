"""A step of training: watched and managed here, against a hand-written torchrun DDP script."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measure import Figure, Result, interleaved, kernels
from benchmarks.rivals import OURS, TORCHRUN, Rival

MAKE = """
import torch
from torch import nn
torch.manual_seed(0)
width, batch, steps = {width}, {batch}, {steps}
X, Y = torch.randn(batch * steps, width), torch.randint(0, 10, (batch * steps,))
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                      nn.Linear(width, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
"""

LOOP = """
import os, time
begun = []
for x, y in loader:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    begun.append(time.perf_counter())
half = begun[len(begun) // 2:]
step = (half[-1] - half[0]) / (len(half) - 1)
"""

CELL = """%%mgpu --gpus 2 --cpu
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(X, Y), batch)
{loop}
"""

SCRIPT = """
from pathlib import Path
Path("train.py").write_text('''import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
torch_threads = {threads}
{make}
torch.set_num_threads(torch_threads)
data = TensorDataset(X, Y)
loader = DataLoader(data, batch // 2, sampler=DistributedSampler(data))
model = DistributedDataParallel(model)
{loop}
if dist.get_rank() == 0:
    print("step", step)
dist.destroy_process_group()
''')
!{{sys.executable}} -m torch.distributed.run --nproc-per-node 2 --master-port 29617 train.py
"""


@dataclass(frozen=True)
class Size:
    """A model: width of its layers, global batch and steps."""

    name: str
    width: int
    batch: int
    steps: int


SIZES = (Size("tiny net", 32, 32, 600), Size("medium net", 1024, 256, 60))


def measure(rounds: int) -> list[Result]:
    """Measure both sizes, and two ranks of one thread against one of one thread."""
    return [result for size in SIZES for result in _compared(rounds, size)] + _scaled(rounds)


def _compared(rounds: int, size: Size) -> list[Result]:
    make = MAKE.format(width=size.width, batch=size.batch, steps=size.steps)
    work = f"a step, {size.name}"
    with kernels([OURS, TORCHRUN], "import torch") as running:
        running[OURS].run(make)

        def once(rival: Rival) -> list[Figure]:
            kernel = running[rival]
            if rival is OURS:
                kernel.run(CELL.format(loop=LOOP))
                step = float(kernel.run("print(step)").text)
            else:
                text = kernel.run(SCRIPT.format(make=make, loop=LOOP, threads=1)).text
                step = float(text.split("step")[-1])
            return [Figure(work, rival.name, 1000 * step, "ms")]

        interleaved(1, [OURS, TORCHRUN], work, once)
        return interleaved(rounds, [OURS, TORCHRUN], work, once)


def _scaled(rounds: int) -> list[Result]:
    """Compute-bound: two ranks with a thread each, against one with a thread."""
    make = MAKE.format(width=1024, batch=512, steps=20)
    results: list[Result] = []
    with kernels([OURS], "import torch") as running:
        kernel = running[OURS]
        kernel.run(make)
        for _ in range(rounds + 1):
            steps = []
            for ranks in (1, 2):
                threads = "torch.set_num_threads(1)\n"
                cell = CELL.format(loop=threads + LOOP).replace("--gpus 2", f"--gpus {ranks}")
                kernel.run(cell)
                steps.append(float(kernel.run("print(step)").text))
            results.append(
                Figure("2 ranks x 1 thread against 1 x 1", "nbmgpu", steps[0] / steps[1], "x")
            )
    return results[1:]
