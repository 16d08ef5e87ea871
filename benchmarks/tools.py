"""The tools that are compared, each with the cells that its users would write.

A tool runs ``workload(...)``, a function of the notebook, on two ranks.  The function imports what
it needs, so that every tool can send it; ``{names}`` are its arguments.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

STAMP = """
import os, time
import torch.distributed as dist
with open(os.path.join(os.environ["BENCH_FOLDER"], f"stamp-{dist.get_rank()}"), "w") as file:
    file.write(str(time.time()))
"""
"""Code with which a rank records the time."""


FRESH = "fresh for every run"
FORKS = "forks of the kernel"
PERSISTENT = "persistent from run to run"


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: its name in the tables.
        setup: a cell that its users run once, before all workloads.
        cell: a template that runs the source ``{workload}`` on two ranks.
        package: its package.
        processes: where its ranks come from: ``FRESH``, ``FORKS`` or ``PERSISTENT``.
        note: what a reader must know about its figures.
    """

    name: str
    cell: str
    package: str
    setup: str = ""
    processes: str = FRESH
    note: str = ""

    @property
    def caveat(self) -> str:
        """What to note beside its figures; empty if its processes are fresh."""
        return "" if self.processes == FRESH else self.processes

    def run(self, workload: str, names: str = "") -> str:
        """Return the cell that runs ``workload``, source code that reads ``names``."""
        indented = textwrap.indent(workload.strip(), "    ").strip()
        return self.cell.format(workload=workload.strip(), indented=indented, names=names)


OURS = Tool(
    name="nbmgpu",
    setup="%load_ext nbmgpu",
    cell="%%mgpu --gpus 2 --cpu --strategy none\n{workload}",
    package="nbmgpu",
    note="forked from a server that has imported the libraries, not from the kernel",
)

FORGET = "from nbmgpu.serialization.storage import storage_pool\nstorage_pool.clear()"
"""Frees the data that nbmgpu keeps from one run to the next."""

TORCHRUN = Tool(
    name="torchrun",
    setup="import sys",
    cell="""
from pathlib import Path
Path("script.py").write_text('''import torch.distributed as dist
dist.init_process_group("gloo")
{workload}
dist.destroy_process_group()
''')
!{{sys.executable}} -m torch.distributed.run --nproc-per-node 2 --master-port 29611 script.py
""",
    package="torch",
    note="a separate script: no notebook objects are sent or written back",
)

TORCHRUNX = Tool(
    name="torchrunx",
    package="torchrunx",
    setup="import torchrunx",
    cell="""
def workload({names}):
    {indented}
launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=2, backend="gloo")
launcher.run(workload, {names})
""",
)

ACCELERATE = Tool(
    name="accelerate notebook_launcher",
    package="accelerate",
    setup="from accelerate import Accelerator, notebook_launcher",
    cell="""
def workload({names}):
    Accelerator(cpu=True)
    {indented}
notebook_launcher(workload, args=tuple([{names}]), num_processes=2)
""",
    processes=FORKS,
    note="also on CPUs, where it reports that it launches on CUDA",
)

LIGHTNING = Tool(
    name="lightning ddp_notebook",
    package="lightning",
    setup="from lightning.fabric import Fabric",
    cell="""
def workload(fabric, {names}):
    {indented}
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_notebook")
fabric.launch(workload, {names})
""",
    processes=FORKS,
)

IPYPARALLEL = Tool(
    name="ipyparallel",
    package="ipyparallel",
    setup="""
import ipyparallel as ipp
cluster = ipp.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync()[:]
def join(rank):
    import torch.distributed as dist
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29613", rank=rank, world_size=2)
engines.map_sync(join, range(2))
""",
    cell="""
def workload({names}):
    {indented}
engines.apply_sync(workload, {names})
""",
    processes=PERSISTENT,
    note="engines join the process group once; a run finds what the previous one has left",
)

NBDISTRIBUTED = Tool(
    name="nbdistributed",
    package="nbdistributed",
    setup="""
%load_ext nbdistributed
%dist_init --num-processes 2
manager = get_ipython().magics_manager.registry["DistributedMagic"]._comm_manager
for _ in range(200):
    try:
        manager.send_to_all("get_status", {}, timeout=0.3)
        break
    except TimeoutError:
        pass
""",
    cell="%%distributed\n{workload}",
    processes=PERSISTENT,
    note="every cell runs on its workers, each of which creates its own data: nothing is sent; "
    "its setup includes waiting until the workers answer; it listens on all interfaces",
)
"""``%dist_init`` returns after two seconds, whether or not its workers have connected.

They connect once they have imported torch and joined the process group.  A cell that is sent before
is lost (a ZeroMQ ROUTER socket drops messages to unknown peers), and the magic prints that it
timed out after 30 seconds.  So the setup waits until all workers answer.
"""

TOOLS = (OURS, TORCHRUN, TORCHRUNX, ACCELERATE, LIGHTNING, IPYPARALLEL, NBDISTRIBUTED)
