"""The job of a run: its script, its number in the run folder, its state in the queue."""

from __future__ import annotations

import re
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle
from nbmgpu.engines.multi_node.interpreter import NONE, check_of_python
from nbmgpu.engines.multi_node.launch_file import LaunchFile
from nbmgpu.engines.multi_node.polled import Polled
from nbmgpu.errors import LaunchError
from nbmgpu.rank.command_line import start_variables
from nbmgpu.runs.folder import write_atomically

from . import commands
from .commands import PENDING, WARNING, JobState
from .job_options import JobOptions
from .refusal import ASSOCIATIONS, explained

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run

JOB_FILE = "slurm-job"
"""Has the number of the job."""

NEVER_STARTED = "Job {job} has ended ({state}) before its ranks had started. {why}"
CANNOT_START = "Slurm job {job} can never start ({reason}): {why}. It is cancelled. {see}"
SEE_NODES = "What the nodes have: sinfo -N -o '%P %N %c cores %G %f'"
SEE_LIMITS = f"What you may ask for: {ASSOCIATIONS.format(user='$USER')}"
NO_LOG = (
    "It has written nothing into the run folder {folder}, which the nodes must see; set "
    "NBMGPU_RUNS in the notebook to a folder that they share."
)
NO_MODULE = (
    "`module load {module}` has failed on node {node}. Type the name as `module avail` shows it "
    "there, or leave modules= out."
)
IN_VAIN = 5.0
"""Seconds for which Slurm must give such a reason: it looks at a new job several times."""

NODE = "$SLURMD_NODENAME"
"""What the shell of a batch script knows as its node."""


def submit_job(run: Run, options: JobOptions) -> Job:
    """Submit the job of a run.

    Raises:
        LaunchError: Slurm refuses it.
    """
    record = run.record
    LaunchFile.create(run.folder, options.interface)
    cpus = record.ranks_per_node * record.threads
    gpus = sum(device != "cpu" for device in record.devices[: record.ranks_per_node])
    timeout, has_checkpoints = record.options.timeout, record.options.values.get("checkpoint_every")
    arguments = {
        "job-name": f"nbmgpu-{run.id}",
        "nodes": str(record.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cpus),
        "output": str(run.folder / "logs" / "launcher.log"),
        "open-mode": "append",
        "chdir": record.kernel.cwd,
        **({"gpus-per-node": str(gpus)} if gpus else {}),
        **({"time": str(int(timeout / 60) + 5)} if timeout else {}),
        **({"signal": f"B:TERM@{WARNING}"} if has_checkpoints else {}),
        **options.sbatch,
    }
    words = [f"--{key}={value}" if value else f"--{key}" for key, value in arguments.items()]
    try:
        job = commands.submit(_script(run, options, cpus), [*words, "--no-requeue"])
    except LaunchError as error:
        raise LaunchError(explained(str(error), arguments)) from None
    write_atomically(run.folder / JOB_FILE, str(job))
    return Job(run.folder)


def _script(run: Run, options: JobOptions, cpus: int) -> str:
    """Return the batch script: it becomes the head of the run."""
    python = options.python
    variables, restored = start_variables(python)
    command = [
        *(python, "-m", "nbmgpu.engines.slurm.head", str(run.folder)),
        *(f"--cpus={cpus}", f"--python={python}", f"--restore-variables={restored}"),
    ]
    lines = [
        "#!/bin/bash -l" if options.modules else "#!/bin/bash",
        *map(_load, options.modules.replace(",", " ").split()),
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        *([] if python == sys.executable else _check(python)),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def _load(module: str) -> str:
    """Return the line that loads an environment module, or ends the job."""
    problem = NO_MODULE.format(module=module, node=NODE)
    return f"module load {shlex.quote(module)} || {_end(problem)}"


def _check(python: str) -> list[str]:
    """Return lines that end the job where the Python that was chosen cannot run ranks."""
    word = shlex.quote(python)
    return [
        f"command -v {word} >/dev/null || {_end(NONE.format(python=python, node=NODE))}",
        f"{word} -c {shlex.quote(check_of_python())} || exit 1",
    ]


def _end(problem: str) -> str:
    """Return a command of the shell that ends the job with a sentence."""
    words = f'"{NODE}"'.join(map(shlex.quote, problem.split(NODE)))
    return f"{{ echo {words}; exit 1; }}"


class Job(RunHandle):
    """The job of a run, as any process that reads the run folder knows it."""

    def __init__(self, folder: Path) -> None:
        """Read the number of the job of the run in ``folder``; it may not be submitted yet."""
        self._folder = folder
        self._polled = Polled(JobState(""))
        self._waits_in_vain: float | None = None
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
            return self._never_starts()
        text = ""
        with suppress(OSError):  # no node sees the folder
            log = self._folder / "logs" / "launcher.log"
            text = log.read_text(errors="replace").strip()
        why = f"It says: {text[-2000:]}" if text else NO_LOG.format(folder=self._folder)
        state = self._polled.last.name.lower()
        return NEVER_STARTED.format(job=self.number, state=state, why=why)

    def _never_starts(self) -> str:
        """Cancel a job that waits for what will not come; return why it does, or nothing."""
        state = self.state()
        if not state.never:
            self._waits_in_vain = None
            return ""
        self._waits_in_vain = self._waits_in_vain or time.monotonic()
        if time.monotonic() - self._waits_in_vain < IN_VAIN:
            return ""
        self.cancel()
        see = SEE_LIMITS if re.match("QOS|Assoc|Account|Invalid", state.reason) else SEE_NODES
        reason, why = state.reason, state.never
        return CANNOT_START.format(job=self.number, reason=reason, why=why, see=see)

    def status(self) -> str:
        """Return what the run waits for, in words; empty if it does not wait in a queue."""
        state = self.state()
        if state.name != PENDING:
            return ""
        place = f", place {state.place} in the queue" if state.place else ""
        start = f", expected to start at {state.start}" if state.start else ""
        reason = f" ({state.reason})" if state.reason else ""
        return f"Slurm job {self.number} is pending{reason}{place}{start}"

    def cancel(self, sig: str = "") -> None:
        """Cancel the job, or signal its head alone."""
        if self.number:
            commands.cancel(self.number, sig)
