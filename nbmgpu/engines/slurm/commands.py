"""Slurm's commands, and what they say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from nbmgpu.errors import LaunchError, format_message

TIMEOUT = 30.0
"""Seconds that a busy controller may take to answer."""

TIMEOUT_AT_END = 5.0
"""The same where Slurm kills this process after ``KillWait``, usually 30 s."""

UNAVAILABLE = "down,drain,fail,maint,unk"
"""States of nodes that may be back later, for ``sinfo``."""

PENDING, GONE = "PENDING", "GONE"
"""States of a job: Slurm's own names, besides GONE for one that Slurm does not list any more."""

NEVER_STARTS = {
    r"PartitionNodeLimit": "its partition has another limit of nodes",
    r"PartitionTimeLimit": "its partition does not allow jobs of that length",
    r"PartitionConfig": "nodes of its partition have less than each rank or node asks for",
    r"BadConstraints": "no nodes are as its constraint asks for",
    r"AccountNotAllowed|InvalidAccount": "its account may not use the partition",
    r"QOSNotAllowed|InvalidQOS": "its QOS may not use the partition",
    r"(QOS|Assoc)(Grp|Max)\w*PerJob\w*": "one job of this account may not have as much",
}
"""Reasons for which a job stays in the queue until somebody changes it or the cluster, by pattern.

Source: https://slurm.schedmd.com/job_reason_codes.html
"""

PREEMPTED = "Slurm has preempted the job: one with a higher priority gets its nodes."
CANCELLED = "The job was cancelled, by scancel or by an administrator."
TIME_LIMIT = "The job has reached its time limit{limit}. For more: --engine-option time=02:00:00"

BEFORE_LIMIT = (
    "The run has stopped a minute or two before the time limit{limit} of its job, for a last "
    "checkpoint. For more: --engine-option time=02:00:00"
)

WARNING = 60
"""Seconds before the time limit of a job at which it is told, for a checkpoint."""

WARNED_WITHIN = timedelta(seconds=2 * WARNING)
"""Slurm may be late or early by a minute: it looks at time limits every 30 s or so."""

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
        never: why it stays in the queue for good; empty if it may start, or has.
        place: its place among the pending jobs of its partition, from 1; 0 if it is not known.
    """

    name: str
    reason: str = ""
    start: str = ""
    place: int = 0
    never: str = ""


def run_command(command: Sequence[str], stdin: str = "", timeout: float = TIMEOUT) -> str:
    """Return what a command prints.

    Args:
        command: its words.
        stdin: what it reads.
        timeout: seconds that a busy controller may take to answer.

    Raises:
        LaunchError: it is not installed, fails, or does not answer.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        what = f"There is no {command[0]} on this machine"
        way = "run the notebook on a login node of the cluster, or leave --engine out"
        raise LaunchError(format_message(what, "Slurm's commands submit the job", way)) from None
    except subprocess.TimeoutExpired:
        what = f"{command[0]} has not answered for {timeout:.0f} s"
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
        command = ["squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T|%r|%S|%P"]
        lines = run_command(command).splitlines()
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
    start = "" if start == "N/A" else start.replace("T", " ")
    reason = "" if reason == "None" else reason
    return JobState(name, reason, start, place, why_never(reason, partition))


def why_never(reason: str, partition: str) -> str:
    """Return why a job that is pending for ``reason`` does so for good; empty if it may start.

    Where nodes of its partition are down or drained, it may start when they are back: Slurm gives
    the same reasons.
    """
    found = (why for pattern, why in NEVER_STARTS.items() if re.fullmatch(pattern, reason))
    why = next(found, "")
    return "" if why and _lacks_nodes(partition) else why


def _lacks_nodes(partition: str) -> bool:
    command = ["sinfo", "-h", "-p", partition, "-t", UNAVAILABLE, "-o", "%D"]
    try:
        return any(map(int, run_command(command).split()))
    except LaunchError:  # it is not known
        return True


def why_it_ends(job: int) -> str:
    """Return why Slurm ends a job, in a sentence; empty if that is not known.

    Args:
        job: its number; Slurm has signalled it, or has begun to end it.
    """
    try:
        command = ["scontrol", "show", "job", "--oneliner", str(job)]
        told = run_command(command, timeout=TIMEOUT_AT_END)
    except LaunchError:
        return ""
    fields = dict(word.partition("=")[::2] for word in told.split())
    if fields.get("PreemptTime", "None") not in ("None", "Unknown"):
        return PREEMPTED
    try:
        left = datetime.fromisoformat(fields["EndTime"]) - datetime.now()
    except (KeyError, ValueError, TypeError):  # no limit, or a format of SLURM_TIME_FORMAT
        left = timedelta.max
    limit = f" of {limit}" if (limit := fields.get("TimeLimit", "")) else ""
    if fields.get("Reason") == "TimeLimit":
        return TIME_LIMIT.format(limit=limit)
    if fields.get("JobState") == "RUNNING" and left < WARNED_WITHIN:
        return BEFORE_LIMIT.format(limit=limit)
    return CANCELLED if fields.get("JobState") in ("COMPLETING", "CANCELLED") else ""


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
