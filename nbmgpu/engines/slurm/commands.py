"""Slurm's commands, and what they say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from nbmgpu.errors import LaunchError, format_message

TIMEOUT = 30.0
"""Seconds that a busy controller may take to answer."""

PENDING, GONE = "PENDING", "GONE"
"""States of a job: Slurm's own names, besides GONE for one that Slurm does not list any more."""

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT", GONE,
}  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """A job as ``squeue`` lists it.

    Attributes:
        name: such as ``PENDING``.
        reason: why it waits, such as ``Resources``; empty if it does not.
        start: when it is expected to start; empty if that is not known.
        place: its place among the pending jobs of its partition, from 1; 0 if it is not known.
    """

    name: str
    reason: str = ""
    start: str = ""
    place: int = 0


def run_command(command: Sequence[str], stdin: str = "") -> str:
    """Return what a command prints.

    Raises:
        LaunchError: it is not installed, fails, or does not answer.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except FileNotFoundError:
        what = f"There is no {command[0]} on this machine"
        way = "run the notebook on a login node of the cluster, or leave --engine out"
        raise LaunchError(format_message(what, "Slurm's commands submit the job", way)) from None
    except subprocess.TimeoutExpired:
        what = f"{command[0]} has not answered for {TIMEOUT:.0f} s"
        raise LaunchError(format_message(what, "Slurm's controller may be down", "sinfo")) from None
    if done.returncode:
        raise LaunchError(f"{command[0]}: {_message(done.stderr)}")
    return done.stdout


def _message(stderr: str) -> str:
    """Return what Slurm says, without the names of its commands."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in stderr.splitlines()]
    return "; ".join(filter(None, lines)) or "it failed without a message"


def submit(script: str, options: Sequence[str]) -> int:
    """Submit a job; return its number.

    Raises:
        LaunchError: Slurm refuses it.
    """
    return int(run_command(["sbatch", "--parsable", *options], script).split(";")[0])


def job_state(job: int) -> JobState:
    """Return the state of a job.

    Raises:
        LaunchError: Slurm does not answer.
    """
    try:
        lines = run_command(["squeue", "-h", "-j", str(job), "-o", "%T|%r|%S|%P"]).splitlines()
    except LaunchError as error:
        if "Invalid job id" in str(error):
            return JobState(GONE)
        raise
    if not lines:
        return JobState(GONE)
    name, reason, start, partition = lines[0].split("|")
    if name != PENDING:
        return JobState(name)
    pending = run_command(["squeue", "-h", "-p", partition, "-t", "PD", "-S", "-p,i", "-o", "%i"])
    jobs = pending.split()
    place = jobs.index(str(job)) + 1 if str(job) in jobs else 0
    return JobState(name, reason, "" if start == "N/A" else start.replace("T", " "), place)


def cancel(job: int, sig: str = "") -> None:
    """Cancel a job, or signal its batch step alone; a job that has ended is not an error.

    Args:
        job: its number.
        sig: name of the signal; empty to cancel the job.

    Raises:
        LaunchError: Slurm does not answer.
    """
    signals = [f"--signal={sig}", "--batch"] if sig else []
    try:
        run_command(["scancel", "--quiet", *signals, str(job)])
    except LaunchError as error:
        if "Invalid job id" not in str(error):
            raise
