"""A step of training: watched and managed here, against a hand-written torchrun DDP script."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from benchmarks.kernels import Kernel
from benchmarks.measure import OUR_SILENT, SILENT, Figure, Result, interleaved, kernels
from benchmarks.rivals import OURS, TORCHRUN, Rival

LINEAR = """
X, Y = torch.randn({batch} * {steps}, {width}), torch.randint(0, 10, ({batch} * {steps},))
model = nn.Sequential(nn.Linear({width}, {width}), nn.ReLU(), nn.Linear({width}, {width}),
                      nn.ReLU(), nn.Linear({width}, 10))
"""

CONVOLUTIONS = """
X = torch.randn({batch} * {steps}, 3, {pixels}, {pixels})
Y = torch.randint(0, 10, ({batch} * {steps},))
layers = [nn.Conv2d(3, {width}, 3, padding=1), nn.ReLU()]
for _ in range({depth} - 1):
    layers += [nn.Conv2d({width}, {width}, 3, padding=1), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear({width}, 10))
"""


@dataclass(frozen=True)
class Net:
    """A model and its data: ``width`` of its layers, global ``batch`` and ``steps``.

    One of convolutions has ``depth`` of them, on pictures of ``pixels`` by ``pixels``.
    """

    name: str
    source: str
    width: int
    batch: int
    steps: int
    depth: int = 0
    pixels: int = 0

    @property
    def make(self) -> str:
        """The code that makes ``model``, ``opt`` and the data."""
        source = self.source.format(**vars(self))
        return (
            f"import torch\nfrom torch import nn\ntorch.manual_seed(0)\n{source}"
            "opt = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        )


TINY = Net("tiny net", LINEAR, width=32, batch=32, steps=600)
MEDIUM = Net("medium net", LINEAR, width=1024, batch=256, steps=120)
COMPUTING = Net("compute-bound", CONVOLUTIONS, width=128, batch=128, steps=60, depth=4, pixels=8)
"""As in a ResNet's late stage: four times as many operations for a byte of a picture as below."""
WIDE = Net("bound by memory, too", CONVOLUTIONS, width=32, batch=64, steps=40, depth=2, pixels=32)
"""As in an early stage: what ranks share is the way to memory, all of them at once."""

LOOP = """
import json, os, time
begun, busy = [], []
for x, y in loader:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    begun.append(time.perf_counter())
    busy.append(time.process_time())
half = len(begun) // 2
step, cpu = ((t[-1] - t[half]) / (len(t) - 1 - half) * 1000 for t in (begun, busy))
"""
"""In milliseconds of the second half: what a step takes, and what of a processor it uses."""

CELL = """%%mgpu --gpus {ranks} --cpu {how}
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
loader = DataLoader(TensorDataset(X[:{count}], Y[:{count}]), {batch})
{loop}
"""

SCRIPT = """
from pathlib import Path
Path("train.py").write_text('''import sys
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
{make}
torch.set_num_threads(1)
data = TensorDataset(X, Y)
loader = DataLoader(data, {batch} // dist.get_world_size(), sampler=DistributedSampler(data))
if "alone" not in sys.argv:
    model = DistributedDataParallel(model)
{loop}
if dist.get_rank() == 0:
    print("took", json.dumps([step, cpu]))
dist.destroy_process_group()
''')
!{{sys.executable}} -m torch.distributed.run --nproc-per-node {ranks} --master-port 29617 \
    train.py {how}
"""


def measure(rounds: int) -> list[Result]:
    """Measure two sizes, and how much faster two ranks are than one."""
    return [
        *(result for net in (TINY, MEDIUM) for result in _compared(rounds, net)),
        *(result for net in (COMPUTING, WIDE) for result in _scaled(rounds, net)),
    ]


def _compared(rounds: int, net: Net) -> list[Result]:
    work = f"a step, {net.name}"
    with kernels([OURS, TORCHRUN], "import torch") as running:
        running[OURS].run(net.make)

        def once(rival: Rival) -> list[Figure]:
            if rival is OURS:
                step, cpu = _ours(running[rival], net)
            else:
                step, cpu = _script(running[rival], net)
            return [
                Figure(work, rival.name, step, "ms"),
                Figure(f"{work}: processor time of a rank", rival.name, cpu, "ms"),
            ]

        interleaved(1, [OURS, TORCHRUN], work, once)
        return interleaved(rounds, [OURS, TORCHRUN], work, once)


def _scaled(rounds: int, net: Net) -> list[Result]:
    """Two ranks with a thread each against one with a thread; and what the machine allows.

    That is told by two processes that do not talk to each other, and have half a batch each: for
    each tool, as what a process does with its memory is part of what a step takes.
    """
    work = f"2 ranks x 1 thread against 1 x 1, {net.name}"
    half = replace(net, batch=net.batch // 2)
    results: list[Result] = []
    with kernels([OURS, TORCHRUN], "import torch") as running:
        ours, script = running[OURS], running[TORCHRUN]
        ours.run(net.make)
        for _ in range(rounds + 1):
            one, two = (_ours(ours, net, ranks)[0] for ranks in (1, 2))
            silent = _ours(ours, half, 2, "--strategy none")[0]
            ddp, ddps = (_script(script, net, ranks)[0] for ranks in (1, 2))
            alone = _script(script, net, 2, "alone")[0]
            results += [
                Figure(work, "nbmgpu", one / two, "x", more_is_better=True),
                Figure(work, "torchrun", ddp / ddps, "x", more_is_better=True),
                Figure(work, OUR_SILENT, one / silent, "x", more_is_better=True),
                Figure(work, SILENT, ddp / alone, "x", more_is_better=True),
                Figure(f"a step of 2 ranks x 1 thread, {net.name}", "nbmgpu", two, "ms"),
                Figure(f"a step of 2 ranks x 1 thread, {net.name}", "torchrun", ddps, "ms"),
            ]
    return results[6:]


def _ours(kernel: Kernel, net: Net, ranks: int = 2, how: str = "") -> tuple[float, float]:
    count = net.batch * net.steps
    kernel.run(CELL.format(loop=LOOP, batch=net.batch, count=count, ranks=ranks, how=how))
    step, cpu = json.loads(kernel.run("print(json.dumps([step, cpu]))").text)
    return step, cpu


def _script(kernel: Kernel, net: Net, ranks: int = 2, how: str = "") -> tuple[float, float]:
    cell = SCRIPT.format(make=net.make, loop=LOOP, batch=net.batch, ranks=ranks, how=how)
    told = kernel.run(cell).text.split("took")[-1].splitlines()[0]  # gloo may have last words
    step, cpu = json.loads(told)
    return step, cpu
