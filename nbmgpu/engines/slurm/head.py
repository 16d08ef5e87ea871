"""``python -m nbmgpu.engines.slurm.head``: the batch step of a job."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from nbmgpu.engines.multi_node.head import run_head
from nbmgpu.engines.restart import start_again
from nbmgpu.rank.command_line import restore_variables, start_variables
from nbmgpu.runs.run import Run

from .commands import why_it_ends

SRUN_LOG = "srun.log"
FAILED_TASK = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: ", re.MULTILINE)
"""What srun prints of a task that ended with an error: ``srun: error: n2: task 1: Killed``."""
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
NO_BINDING = "srun: cluster configuration lacks support for cpu binding\n"
"""What srun says to ``--cpu-bind=none`` where that is so in any case."""
LOST = "Slurm has lost the node {node} with its ranks"

END_TIMEOUT, LOST_TIMEOUT = 10.0, 1.0
"""Seconds that ``srun`` may take to end after the ranks, and where it waits for a lost node."""

OF_TASKS = ("NTASKS", "NTASKS_PER_NODE", "NPROCS", "PROCID", "LOCALID", "TASKS_PER_NODE")
"""Variables that describe the tasks of the job, one per node.  Lightning and others would take
them for ranks."""

OF_JOB = ("SLURM_JOB", "SLURM_MEM", "SLURM_CPU", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_TASKS")
"""Begin the names of variables that would change the job of a run that replaces this one."""

NODE_COMMAND = (
    f'exec env {" ".join(f"-u SLURM_{name}" for name in OF_TASKS)} "$0" -m '
    'nbmgpu.engines.multi_node.node_launcher "$1" --node-rank="$SLURM_NODEID" '
    '--node-name="$SLURMD_NODENAME" --head="$SLURM_LAUNCH_NODE_IPADDR:$2" --restore-variables="$3"'
)
"""What each node runs, with these arguments of its shell: Python, run folder, port, variables."""


def main() -> None:
    """Run the head of the run that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.engines.slurm.head")
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("--cpus", required=True, help="cores of a node")
    parser.add_argument("--python", required=True, help="the interpreter")
    parser.add_argument("--restore-variables", default="{}", help="as of nbmgpu.rank")
    given = parser.parse_args()
    variables, _ = start_variables(given.python)

    def start_nodes(port: int) -> SlurmNodes:
        arguments = [given.python, str(given.folder), str(port), given.restore_variables]
        return SlurmNodes(given.folder, given.cpus, arguments, variables)

    run_head(given.folder, start_nodes)
    restore_variables(given.restore_variables)
    for name in [name for name in os.environ if name.startswith(OF_JOB)]:
        del os.environ[name]
    start_again(Run(given.folder))


class SlurmNodes:
    """The tasks of one ``srun``, a node launcher per node."""

    def __init__(
        self, folder: Path, cpus: str, arguments: list[str], variables: dict[str, str]
    ) -> None:
        """Start them; what they print goes into ``logs`` of the run folder."""
        self._log = folder / "logs" / SRUN_LOG
        with self._log.open("wb") as log:
            self._srun = subprocess.Popen(
                [
                    *("srun", "--ntasks-per-node=1", f"--cpus-per-task={cpus}"),
                    *("--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"),
                    *("sh", "-c", NODE_COMMAND, *arguments),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | variables,
                start_new_session=True,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        """Whether ``srun`` has ended, and all its tasks with it."""
        return self._srun.poll() is not None

    @property
    def failed(self) -> bool:
        """Whether ``srun`` has reported that a task ended with an error."""
        return bool(FAILED_TASK.search(self.output()))

    @property
    def lost(self) -> str:
        """Which node ``srun`` has reported as failed; empty if none."""
        found = NODE_FAILURE.search(self.output())
        return LOST.format(node=found[1]) if found else ""

    def why_ended(self) -> str:
        """Return why Slurm ends the job, as a sentence; empty if that is not known."""
        return why_it_ends(int(os.environ["SLURM_JOB_ID"]))

    def output(self) -> str:
        """Return what ``srun`` and its tasks have printed last."""
        text = self._log.read_text(errors="replace")
        return text.replace(NO_BINDING, "").strip()[-2000:]

    def have_copied(self, since: float) -> bool:
        """Return True: nodes write into the run folder itself."""
        return True

    def end(self, at_once: bool = False) -> None:
        """End what is left after the ranks have ended; Slurm ends the rest with the job."""
        for sig in (None, signal.SIGTERM, signal.SIGKILL):
            if sig is not None:
                self._srun.send_signal(sig)
            with suppress(subprocess.TimeoutExpired):
                self._srun.wait(timeout=LOST_TIMEOUT if at_once else END_TIMEOUT)
                return


if __name__ == "__main__":
    main()
