"""The engine that submits runs as jobs of Slurm."""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle
from nbmgpu.engines.multi_node.engine import MultiNodeEngine
from nbmgpu.engines.multi_node.placement import place_on_nodes
from nbmgpu.options.engine_options import recorded_engine_values

from .commands import run_command
from .job import Job, submit_job
from .job_options import JobOptions

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run


class SlurmEngine(MultiNodeEngine):
    """Submits a job per run."""

    NOT_STARTED = "Its job was cancelled before its ranks had started."

    def __init__(self) -> None:
        """Know no job yet."""
        self._jobs: dict[str, Job] = {}

    def missing(self) -> str:
        """Return Slurm's command where it is not installed."""
        return "" if shutil.which("sbatch") else "sbatch"

    def place(self, options: RunOptions) -> Placement:
        """Place the same number of ranks on each node; Slurm chooses the nodes, and their GPUs."""
        job = JobOptions.of(options.engine_values())
        return place_on_nodes(options, lambda: gpus_per_node(job), job.cpus_per_rank)

    def launch(self, run: Run) -> RunHandle:
        """Submit the job."""
        options = JobOptions.of(recorded_engine_values(run.record.options.values))
        job = self._jobs[run.id] = submit_job(run, options)
        return job

    def is_alive(self, run: Run) -> bool:
        """Return whether Slurm still lists the job, or it has not been submitted yet."""
        return not self._job(run).ended

    def cancel(self, run: Run, sig: signal.Signals | None = None) -> None:
        """Signal the head of the job, or cancel the job."""
        self._job(run).cancel(sig.name if sig else "")

    def _job(self, run: Run) -> Job:
        if run.id not in self._jobs:
            self._jobs[run.id] = Job(run.folder)
        return self._jobs[run.id]


def gpus_per_node(options: JobOptions) -> int:
    """Return how many GPUs each node of the partition has, at least; 0 without any.

    Raises:
        LaunchError: Slurm does not answer.
    """
    partition = options.sbatch.get("partition")
    words = [f"--partition={partition}"] if partition else []
    listed = run_command(["sinfo", "-h", "-o", "%P|%G", *words]).splitlines()
    if not partition:  # the default one has a star
        listed = [line for line in listed if line.partition("|")[0].endswith("*")] or listed
    found = [re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", line.partition("|")[2]) for line in listed]
    return min((sum(map(int, each)) for each in found), default=0)
