"""The job of a run: its script, its number in the run folder, its state in the queue."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle
from nbmgpu.engines.multi_node.launch_file import LaunchFile
from nbmgpu.engines.multi_node.polled import Polled
from nbmgpu.rank.command_line import start_variables
from nbmgpu.runs.folder import write_atomically

from . import commands
from .commands import PENDING, JobState
from .job_options import JobOptions

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run

JOB_FILE = "slurm-job"
"""Has the number of the job."""

WARNING = 60
"""Seconds before the time limit of a job at which it is told, for a checkpoint."""

NEVER_STARTED = (
    "Job {job} has ended ({state}) before its ranks had started. {log}The nodes must see the run "
    "folder {folder}; set NBMGPU_RUNS in the notebook to one that they share."
)


def submit_job(run: Run, options: JobOptions) -> Job:
    """Submit the job of a run.

    Raises:
        LaunchError: Slurm refuses it.
    """
    record = run.record
    LaunchFile.create(run.folder, options.interface)
    cpus = record.ranks_per_node * record.threads
    gpus = sum(device != "cpu" for device in record.devices[: record.ranks_per_node])
    timeout = record.options.timeout
    arguments = {
        "job-name": f"nbmgpu-{run.id}",
        "nodes": str(record.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cpus),
        "output": str(run.folder / "logs" / "launcher.log"),
        "open-mode": "append",
        "chdir": record.kernel.cwd,
        "signal": f"B:TERM@{WARNING}",
        **({"gpus-per-node": str(gpus)} if gpus else {}),
        **({"time": str(int(timeout / 60) + 5)} if timeout else {}),
        **options.sbatch,
    }
    words = [f"--{key}={value}" if value else f"--{key}" for key, value in arguments.items()]
    job = commands.submit(_script(run, options, cpus), [*words, "--no-requeue"])
    write_atomically(run.folder / JOB_FILE, str(job))
    return Job(run.folder)


def _script(run: Run, options: JobOptions, cpus: int) -> str:
    """Return the batch script: it becomes the head of the run."""
    variables, restored = start_variables()
    command = [
        *(options.python, "-m", "nbmgpu.engines.slurm.head", str(run.folder)),
        *(f"--cpus={cpus}", f"--python={options.python}", f"--restore-variables={restored}"),
    ]
    lines = [
        "#!/bin/bash -l" if options.modules else "#!/bin/bash",
        *(f"module load {shlex.quote(m)}" for m in options.modules.replace(",", " ").split()),
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


class Job(RunHandle):
    """The job of a run, as any process that reads the run folder knows it."""

    def __init__(self, folder: Path) -> None:
        """Read the number of the job of the run in ``folder``; it may not be submitted yet."""
        self._folder = folder
        self._polled = Polled(JobState(""))
        self.number = 0
        self._read_number()

    def _read_number(self) -> None:
        with suppress(OSError, ValueError):
            self.number = int((self._folder / JOB_FILE).read_text())

    def state(self) -> JobState:
        """Return the state of the job, which may be some seconds old.

        Its name is empty if the job is not submitted yet, or Slurm has not answered so far.
        """
        if not self.number:
            self._read_number()
            return self._polled.last
        return self._polled.state(lambda: commands.job_state(self.number))

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.state().name in commands.ENDED

    def error(self) -> str:
        """Return why the ranks will never start; empty as long as they may."""
        if not self.ended:
            return ""
        text = ""
        with suppress(OSError):  # no node sees the folder
            log = self._folder / "logs" / "launcher.log"
            text = log.read_text(errors="replace").strip()
        said = f"It says: {text[-2000:]}\n" if text else ""
        return NEVER_STARTED.format(
            job=self.number, state=self._polled.last.name.lower(), log=said, folder=self._folder
        )

    def status(self) -> str:
        """Return what the run waits for, in words; empty if it does not wait in a queue."""
        state = self.state()
        if state.name != PENDING:
            return ""
        place = f", place {state.place} in the queue" if state.place else ""
        start = f", expected to start at {state.start}" if state.start else ""
        return f"Slurm job {self.number} is pending ({state.reason}){place}{start}"

    def cancel(self, sig: str = "") -> None:
        """Cancel the job, or signal its head alone."""
        if self.number:
            commands.cancel(self.number, sig)
