"""The time that Python takes for a step, compared with the same strategy written by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.kernels import Kernel
from benchmarks.measure import BY_HAND, Figure, Result, kernels
from benchmarks.tools import OURS

MAKE = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(*(nn.Linear(4, 4) for _ in range({tensors} // 2)))
data = torch.utils.data.TensorDataset(torch.randn(3200, 4), torch.randint(0, 4, (3200,)))
"""

STEPS = """
import json, statistics, time
torch.set_num_threads(1)
times = []
for x, y in loader:
    begun = time.thread_time()
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
    times.append(time.thread_time() - begun)
step = 1e6 * statistics.median(times[100:])
"""
"""Microseconds of a step on the processor, without the waits for other ranks."""

OPTIMIZER = "opt = torch.optim.SGD(net.parameters(), lr=0.001, foreach=True)"

CELL = f"""%%mgpu --gpus 2 --cpu --verify 0 --strategy {{strategy}}
{STEPS}
"""
"""``--verify 0``: what the comparison with one device takes is gone after the first seconds."""

SCRIPT = f"""
from pathlib import Path
Path("by_hand.py").write_text('''import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
{{make}}
sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
{{by_hand}}
{STEPS}
if dist.get_rank() == 0:
    print("took", json.dumps(step))
dist.destroy_process_group()
''')
!{{{{sys.executable}}}} -m torch.distributed.run --nproc-per-node 2 --master-port 29618 by_hand.py
"""


@dataclass(frozen=True)
class Case:
    """A strategy, and the code that a person writes instead of it."""

    strategy: str
    by_hand: str


CASES = (
    Case("ddp", f"net = DistributedDataParallel(net)\n{OPTIMIZER}"),
    Case(
        "zero1",
        "net = DistributedDataParallel(net)\n"
        "opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.001, foreach=True)",
    ),
    Case("fsdp", f"fully_shard(net)\n{OPTIMIZER}"),
)
TENSORS = (4, 100, 400)
"""Numbers of parameter tensors."""


FIXED_LIMIT, LIMIT_PER_TENSOR = 50, 2
"""Microseconds beyond the code by hand, at most."""


def measure(rounds: int) -> list[Result]:
    """Measure each strategy and the code by hand in turn, with tiny tensors."""
    results: list[Result] = []
    with kernels([OURS], "import torch, json, sys") as running:
        kernel = running[OURS]
        for case in CASES:
            for tensors in TENSORS:
                make, workload = MAKE.format(tensors=tensors), workload_of(case, tensors)
                for _ in range(rounds):
                    results += [
                        Figure(workload, "nbmgpu", _ours(kernel, make, case), "µs"),
                        Figure(workload, BY_HAND, _by_hand(kernel, make, case), "µs"),
                    ]
    return results


def workload_of(case: Case, tensors: int) -> str:
    """Return the title of a table."""
    return f"Python's time for a step of {case.strategy}, {tensors} parameter tensors"


def _ours(kernel: Kernel, make: str, case: Case) -> float:
    kernel.run(f"{make}\n{OPTIMIZER}\nloader = torch.utils.data.DataLoader(data, 8)")
    kernel.run(CELL.format(strategy=case.strategy))
    return float(kernel.run("print(step)").text)


def _by_hand(kernel: Kernel, make: str, case: Case) -> float:
    output = kernel.run(SCRIPT.format(make=make, by_hand=case.by_hand)).text
    return float(json.loads(output.split("took")[-1].splitlines()[0]))


LIMITS = {
    workload_of(case, tensors): FIXED_LIMIT + LIMIT_PER_TENSOR * tensors
    for case in CASES
    for tensors in TENSORS
}
"""The limit of each table, in microseconds beyond the code by hand."""
