"""The engine that submits runs as jobs of Slurm."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle
from nbmgpu.engines.multi_node.engine import MultiNodeEngine
from nbmgpu.engines.multi_node.placement import place_on_nodes
from nbmgpu.options.engine_options import recorded_engine_values
from nbmgpu.runs.events import Ended, Notice
from nbmgpu.runs.view import NODE_LOST

from .commands import CANCELLED, PREEMPTED, TIME_LIMIT, run_command
from .job import Job, submit_job
from .job_options import JobOptions

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run

NODE_FAIL = "NODE_FAIL"

LOST_HEAD = {
    NODE_FAIL: "Slurm has lost the first node of the job{name}, which ran the head of the run.",
    "OUT_OF_MEMORY": (
        "The job was out of memory. For more per node: --engine-option mem=64G, or a smaller batch"
    ),
    "PREEMPTED": PREEMPTED,
    "TIMEOUT": TIME_LIMIT.format(limit=""),
    "CANCELLED": CANCELLED,
}
"""What states of a job say of a run whose head could not report its end."""


class SlurmEngine(MultiNodeEngine):
    """Submits a job per run."""

    NOT_STARTED = "Its job was cancelled before its ranks had started."

    def __init__(self) -> None:
        """Know no job yet."""
        self._jobs: dict[str, Job] = {}

    def missing(self) -> str:
        """Return Slurm's command where it is not installed."""
        return "" if shutil.which("sbatch") else "sbatch"

    def check_options(self, values: Mapping[str, str]) -> None:
        """Check options of a profile."""
        JobOptions.of(values)

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
        job = self._job(run)
        if job.ended and run.view.launcher is not None:
            self._explain_lost_head(run, job.state().name)
        return not job.ended

    def _explain_lost_head(self, run: Run, state: str) -> None:
        """End a run of which the head has been killed with its job, or its node."""
        run.refresh()
        host = run.view.ranks[0].host
        why = LOST_HEAD.get(state, "").format(name=f", {host}" if host else "")
        if run.view.ended is not None or not why:
            return
        if state == NODE_FAIL:
            self.emit(run, Notice, topic=NODE_LOST, text=why.rstrip("."))
        self.emit(run, Ended, ending="failed", detail=why)

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
