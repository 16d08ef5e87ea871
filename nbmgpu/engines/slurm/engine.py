"""The engine that submits runs as jobs of Slurm."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.engines.base import Engine, RunHandle, RunStorage
from nbmgpu.engines.multi_node import FORCE_STOP, STOP
from nbmgpu.engines.multi_node.placement import place_on_nodes
from nbmgpu.options.engine_options import EngineOptions
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended
from nbmgpu.serialization.storage import allocate_file

from .commands import run_command
from .job import Job, submit_job
from .job_options import JobOptions

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run

NOT_STARTED = "Its job was cancelled before its ranks had started."


class SlurmEngine(Engine):
    """Submits a job per run."""

    outlives_kernel = True

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

    def allocate(self, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return files in the run folder, which all nodes see."""
        bundle = allocate_file(folder, "bundle", nbytes)
        results = (allocate_file(folder, f"result-{rank}", 0) for rank in range(world_size))
        return RunStorage(bundle, tuple(results))

    def launch(self, run: Run) -> RunHandle:
        """Submit the job."""
        options = EngineOptions(engine_option=tuple(run.record.options.values["engine_option"]))
        job = self._jobs[run.id] = submit_job(run, JobOptions.of(options.engine_values()))
        return job

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Remove the files."""
        for each in (storage.bundle, *storage.results):
            each.close()

    def is_alive(self, run: Run) -> bool:
        """Return whether Slurm still lists the job, or it has not been submitted yet."""
        return not self._job(run).ended

    def stop(self, run: Run, force: bool, requested: bool) -> None:
        """Signal the head of the run; cancel a job that has none yet."""
        run.refresh()
        if run.view.launcher is not None:
            self._job(run).cancel((FORCE_STOP if force else STOP).name)
            return
        self._job(run).cancel()
        events = EventWriter(run.events_path("launcher"), LAUNCHER)
        events.emit(Ended, ending="stopped", detail=NOT_STARTED)
        events.close()

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
