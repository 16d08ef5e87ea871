"""Why ``sbatch`` refuses a job for its account, its QOS or a limit of them, and what to type."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nbmgpu.errors import LaunchError, format_message

from .commands import TIMEOUT_AT_END, run_command

ACCOUNT, QOS = "Invalid account", "Invalid qos"
LIMIT = re.compile(r"\b(QOS|Assoc)(?:Max|Grp)(\w*?)(?:PerJob|PerUser|PerAccount|PerNode)?Limit\b")
"""The reason of Slurm's that comes before "Job violates accounting/QOS policy"."""

LIMITED = {
    "WallDuration": ("the job may not take as long", "--engine-option time=01:00:00"),
    "Node": ("the job may not have as many nodes", "--nodes 1"),
    "Cpu": ("the job may not have as many cores", "fewer --gpus or cpus-per-rank"),
    "Gres": ("the job may not have as many GPUs", "fewer --gpus"),
    "Mem": ("the job may not have as much memory", "--engine-option mem=16G"),
    "SubmitJobs": ("there are as many jobs as may be", "scancel for one of squeue --me"),
}
"""What is limited, in Slurm's word for it: what that means, and what to type."""

ASSOCIATIONS = "sacctmgr show assoc user={user} format=account,partition,qos,maxtres,maxwall"
"""What lists accounts, and their limits, for a user to read."""


@dataclass(frozen=True)
class Association:
    """What a user may ask Slurm for with one account.

    Attributes:
        account, partition: the partition is empty for all.
        qos: names of those that may be asked for.
        limits: of a job, in Slurm's words; empty for none.
    """

    account: str
    partition: str
    qos: tuple[str, ...]
    limits: str


def explained(said: str, options: Mapping[str, str]) -> str:
    """Return the message for what ``sbatch`` has said.

    Args:
        said: its words.
        options: of the job, without the dashes.
    """
    account = options.get("account", "")
    if ACCOUNT in said:
        names = list(dict.fromkeys(each.account for each in _associations()))
        allowed = f"Your accounts: {', '.join(names)}" if names else ""
        return _refused("account", options, allowed, *(f"account={name}" for name in names))
    if QOS in said:
        usable = [each for each in _associations() if each.qos and account in ("", each.account)]
        listed = [f"{', '.join(each.qos)} with account={each.account}" for each in usable]
        allowed = f"Your QOS: {'; '.join(listed)}" if listed else ""
        ways = [f"account={each.account},qos={each.qos[0]}" for each in usable]
        return _refused("qos", options, allowed, *ways)
    if (found := LIMIT.search(said)) is None:
        return said
    what, way = LIMITED.get(found[2], ("a job may not have as much", ""))
    if found[1] == "QOS":
        limits = _limits_of_qos(options.get("qos", ""))
    else:
        known = _associations()
        limits = [f"account {each.account}: {each.limits}" for each in known if each.limits]
    allowed = f"Limits: {'; '.join(limits)}" if limits else ""
    way = way or ASSOCIATIONS.format(user=getpass.getuser())
    return format_message(f"Slurm refuses the job ({found[0]}): {what}", allowed, way)


def _refused(option: str, options: Mapping[str, str], allowed: str, *ways: str) -> str:
    """Return the message for an account or QOS that does not exist, or is not for this user."""
    what = f"Slurm refuses a job without {option}="
    if given := options.get(option):
        what = f"Slurm refuses {option}={given}: there is none of that name, or you may not use it"
    shown = ASSOCIATIONS.format(user=getpass.getuser())
    return format_message(what, allowed, f"--engine-option {ways[0]}" if ways else shown)


def _associations() -> list[Association]:
    """Return what this user may ask for; empty if Slurm does not tell."""
    user, fields = f"user={getpass.getuser()}", "format=account,partition,qos,maxtres,maxwall"
    found = []
    for account, partition, qos, tres, wall, *_ in _listed(["assoc", user, fields], 5):
        names = tuple(filter(None, qos.split(",")))
        found.append(Association(account, partition, names, _limits(tres, wall)))
    return found


def _limits_of_qos(name: str) -> list[str]:
    if not name:
        return []
    lines = _listed(["qos", name, "format=name,maxtres,maxwall"], 3)
    return [f"QOS {qos}: {limits}" for qos, *each in lines if (limits := _limits(*each[:2]))]


def _limits(tres: str, wall: str) -> str:
    return ", ".join(filter(None, [tres.replace(",", ", "), wall and f"time={wall}"]))


def _listed(words: list[str], columns: int) -> list[list[str]]:
    """Return the lines of ``sacctmgr show``; none where there is no accounting."""
    try:
        text = run_command(["sacctmgr", "-n", "-P", "show", *words], timeout=TIMEOUT_AT_END)
    except LaunchError:
        return []
    lines = [line.split("|") for line in text.splitlines()]
    return [line for line in lines if len(line) >= columns]
