"""The tools that are compared, each as the cells that its users would write.

A rival runs ``work(...)``, a function of the notebook, on two ranks.  ``{call}`` stands for
its arguments.  The function is made so that every tool can send it: it imports what it needs.
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
"""How a rank says when it was there."""


FRESH = "fresh for every run"
FORKS = "forks of the kernel"
STAY = "live on from run to run"


@dataclass(frozen=True)
class Rival:
    """One tool.

    Attributes:
        name: as the table shows it.
        setup: a cell that its users run once, before any work.
        cell: runs ``{work}``, the source of the work, on two ranks.
        package: where it comes from.
        processes: where those come from that run the work; ``FRESH``, ``FORKS`` or ``STAY``.
        note: what a reader must know of its figures.
    """

    name: str
    cell: str
    package: str
    setup: str = ""
    processes: str = FRESH
    note: str = ""

    @property
    def caveat(self) -> str:
        """What to say beside a figure of it: nothing where processes are fresh."""
        return "" if self.processes == FRESH else self.processes

    def run(self, work: str, names: str = "") -> str:
        """Return the cell that runs ``work``, a piece of source that reads ``names``."""
        indented = textwrap.indent(work.strip(), "    ").strip()
        return self.cell.format(work=work.strip(), indented=indented, names=names)


OURS = Rival(
    name="nbmgpu",
    setup="%load_ext nbmgpu",
    cell="%%mgpu --gpus 2 --cpu --strategy none\n{work}",
    package="nbmgpu",
    note="forked from a server that has imported the libraries, not from the kernel",
)

FORGET = "from nbmgpu.serialization.storage import storage_pool\nshelf.clear()"
"""What nbmgpu keeps from one run to the next is given up."""

TORCHRUN = Rival(
    name="torchrun",
    setup="import sys",
    cell="""
from pathlib import Path
Path("script.py").write_text('''import torch.distributed as dist
dist.init_process_group("gloo")
{work}
dist.destroy_process_group()
''')
!{{sys.executable}} -m torch.distributed.run --nproc-per-node 2 --master-port 29611 script.py
""",
    package="torch",
    note="a script of its own: no notebook objects go in or out",
)

TORCHRUNX = Rival(
    name="torchrunx",
    package="torchrunx",
    setup="import torchrunx",
    cell="""
def work({names}):
    {indented}
launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=2, backend="gloo")
launcher.run(work, {names})
""",
)

ACCELERATE = Rival(
    name="accelerate notebook_launcher",
    package="accelerate",
    setup="from accelerate import Accelerator, notebook_launcher",
    cell="""
def work({names}):
    Accelerator(cpu=True)
    {indented}
notebook_launcher(work, args=tuple([{names}]), num_processes=2)
""",
    processes=FORKS,
    note="on CPUs, too, where it says that it launches CUDAs",
)

LIGHTNING = Rival(
    name="lightning ddp_notebook",
    package="lightning",
    setup="from lightning.fabric import Fabric",
    cell="""
def work(fabric, {names}):
    {indented}
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_notebook")
fabric.launch(work, {names})
""",
    processes=FORKS,
)

IPYPARALLEL = Rival(
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
def work({names}):
    {indented}
engines.apply_sync(work, {names})
""",
    processes=STAY,
    note="engines join once; what a run leaves there, the next one finds",
)

NBDISTRIBUTED = Rival(
    name="nbdistributed",
    package="nbdistributed",
    setup="%load_ext nbdistributed\n%dist_init --num-processes 2",
    cell="%%distributed\n{work}",
    processes=STAY,
    note="every cell runs on its workers, each of which makes data of its own: nothing is sent; "
    "it listens on all interfaces",
)

RIVALS = (OURS, TORCHRUN, TORCHRUNX, ACCELERATE, LIGHTNING, IPYPARALLEL, NBDISTRIBUTED)
