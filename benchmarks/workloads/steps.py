"""A training step of nbmgpu, compared with a DDP script under torchrun."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from benchmarks.kernels import Kernel
from benchmarks.measure import INDEPENDENT, INDEPENDENT_RANKS, Figure, Result, interleaved, kernels
from benchmarks.tools import OURS, TORCHRUN, Tool

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

DROPOUT = """
X, Y = torch.randn({batch} * {steps}, 32, {width}), torch.randint(0, 10, ({batch} * {steps},))
layer = nn.TransformerEncoderLayer({width}, 4, 4 * {width}, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, {depth}, enable_nested_tensor=False),
                      nn.Flatten(), nn.Linear(32 * {width}, 10))
"""

NORMALIZED = CONVOLUTIONS.replace("    layers += [", "    layers += [nn.BatchNorm2d({width}), ")


@dataclass(frozen=True)
class Net:
    """A model and its data: the ``width`` of its layers, the global ``batch`` and ``steps``.

    A convolutional network has ``depth`` layers, for images of ``pixels`` x ``pixels``; a
    transformer has as many, for sequences of 32.  ``options`` are those of the cell.
    """

    name: str
    source: str
    width: int
    batch: int
    steps: int
    depth: int = 0
    pixels: int = 0
    options: str = ""

    @property
    def make(self) -> str:
        """The code that creates ``model``, ``opt`` and the data."""
        source = self.source.format(**vars(self))
        return (
            f"import torch\nfrom torch import nn\ntorch.manual_seed(0)\n{source}"
            "opt = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        )


TINY = Net("tiny net", LINEAR, width=32, batch=32, steps=600)
MEDIUM = Net("medium net", LINEAR, width=1024, batch=256, steps=120)
COMPUTING = Net("compute-bound", CONVOLUTIONS, width=128, batch=128, steps=60, depth=4, pixels=8)
"""As in a late stage of a ResNet: four times the operations per byte of an image of ``WIDE``."""
WIDE = Net("bound by memory, too", CONVOLUTIONS, width=32, batch=64, steps=40, depth=2, pixels=32)
"""As in an early stage: ranks share the memory bandwidth."""

EXACT = (
    Net("tiny transformer with dropout, whole batches", DROPOUT, width=16, batch=16, steps=160,
        depth=2, options="--exact always"),
    Net("transformer with dropout, whole batches", DROPOUT, width=128, batch=64, steps=80,
        depth=4, options="--exact always"),
    Net("convolutions with batch norm, whole batches", NORMALIZED, width=64, batch=64, steps=80,
        depth=4, pixels=16, options="--exact always"),
)  # fmt: skip
"""What only whole batches train as one device does; the second half of the steps begins behind the
trial at call 32.  DDP draws other numbers, and normalizes over shards: SyncBatchNorm does not run
on the CPU."""

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
"""Milliseconds per step in the second half: wall time and CPU time."""

CELL = """%%mgpu --gpus {ranks} --cpu --verify 0 {options}
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
if "independent" not in sys.argv:
    model = DistributedDataParallel(model)
{loop}
if dist.get_rank() == 0:
    print("took", json.dumps([step, cpu]))
dist.destroy_process_group()
''')
!{{sys.executable}} -m torch.distributed.run --nproc-per-node {ranks} --master-port 29617 \
    train.py {options}
"""


def measure(rounds: int) -> list[Result]:
    """Measure a step of two sizes, and the speed-up of two ranks over one."""
    return [
        *(result for net in (TINY, MEDIUM, *EXACT) for result in _compared(rounds, net)),
        *(result for net in (COMPUTING, WIDE) for result in _scaled(rounds, net)),
    ]


def _compared(rounds: int, net: Net) -> list[Result]:
    workload = f"a step, {net.name}"
    with kernels([OURS, TORCHRUN], "import torch") as running:
        running[OURS].run(net.make)

        def once(tool: Tool) -> list[Figure]:
            if tool is OURS:
                step, cpu = _ours(running[tool], net, options=net.options)
            else:
                step, cpu = _script(running[tool], net)
            return [
                Figure(workload, tool.name, step, "ms"),
                Figure(f"{workload}: CPU time of a rank", tool.name, cpu, "ms"),
            ]

        interleaved(1, [OURS, TORCHRUN], workload, once)
        return interleaved(rounds, [OURS, TORCHRUN], workload, once)


def _scaled(rounds: int, net: Net) -> list[Result]:
    """Measure two ranks with one thread each against one rank, and the upper bound of the machine.

    The bound is the speed of two processes without communication and with half a batch each.  It is
    measured for each tool, because memory allocation is part of the time of a step.
    """
    workload = f"2 ranks x 1 thread against 1 x 1, {net.name}"
    half = replace(net, batch=net.batch // 2)
    results: list[Result] = []
    with kernels([OURS, TORCHRUN], "import torch") as running:
        ours, script = running[OURS], running[TORCHRUN]
        ours.run(net.make)
        for _ in range(rounds + 1):
            one, two = (_ours(ours, net, ranks)[0] for ranks in (1, 2))
            independent_ranks = _ours(ours, half, 2, "--strategy none")[0]
            ddp, ddps = (_script(script, net, ranks)[0] for ranks in (1, 2))
            independent = _script(script, net, 2, "independent")[0]
            results += [
                Figure(workload, "nbmgpu", one / two, "x", more_is_better=True),
                Figure(workload, "torchrun", ddp / ddps, "x", more_is_better=True),
                Figure(
                    workload, INDEPENDENT_RANKS, one / independent_ranks, "x", more_is_better=True
                ),
                Figure(workload, INDEPENDENT, ddp / independent, "x", more_is_better=True),
                Figure(f"a step of 2 ranks x 1 thread, {net.name}", "nbmgpu", two, "ms"),
                Figure(f"a step of 2 ranks x 1 thread, {net.name}", "torchrun", ddps, "ms"),
            ]
    return results[6:]


def _ours(kernel: Kernel, net: Net, ranks: int = 2, options: str = "") -> tuple[float, float]:
    count = net.batch * net.steps
    kernel.run(CELL.format(loop=LOOP, batch=net.batch, count=count, ranks=ranks, options=options))
    step, cpu = json.loads(kernel.run("print(json.dumps([step, cpu]))").text)
    return step, cpu


def _script(kernel: Kernel, net: Net, ranks: int = 2, options: str = "") -> tuple[float, float]:
    cell = SCRIPT.format(make=net.make, loop=LOOP, batch=net.batch, ranks=ranks, options=options)
    output = kernel.run(cell).text.split("took")[-1].splitlines()[0]  # gloo may print afterwards
    step, cpu = json.loads(output)
    return step, cpu
