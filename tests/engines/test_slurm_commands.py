"""What Slurm's own words say of a job; no cluster is needed."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nbmgpu.engines.slurm import commands
from nbmgpu.engines.slurm.commands import CANCELLED, PREEMPTED, job_state, why_it_ends, why_never
from nbmgpu.engines.slurm.head import SlurmNodes
from nbmgpu.errors import LaunchError

TIMES = {"soon": timedelta(seconds=50), "later": timedelta(hours=5)}
"""Times from now, by their names in the fields: a test has the same name in all workers."""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            "JobState=RUNNING Reason=None TimeLimit=01:00:00 EndTime={soon}",
            "time limit of 01:00:00 of its job",
        ),
        ("JobState=COMPLETING Reason=TimeLimit TimeLimit=00:10:00 EndTime={soon}", "00:10:00"),
        ("JobState=RUNNING TimeLimit=1:00 EndTime={later} PreemptTime={soon}", PREEMPTED),
        ("JobState=COMPLETING Reason=None PreemptTime=None EndTime={soon}", CANCELLED),
        ("JobState=RUNNING Reason=None TimeLimit=1:00 EndTime={later}", ""),
        ("JobState=RUNNING Reason=None TimeLimit=UNLIMITED EndTime=Unknown", ""),
        ("JobState=CANCELLED Reason=None EndTime={soon}+0100", CANCELLED),  # SLURM_TIME_FORMAT
    ],
)
def test_the_end_of_a_job_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, fields: str, why: str
) -> None:
    now = datetime.now()
    times = {name: (now + t).isoformat(timespec="seconds") for name, t in TIMES.items()}
    job = f"JobId=7 {fields.format(**times)}\n"
    monkeypatch.setattr(commands, "run_command", lambda command, timeout: job)
    assert why in why_it_ends(7)
    assert bool(why_it_ends(7)) == bool(why)


def test_a_slurm_that_does_not_answer_gives_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], timeout: float) -> str:
        raise LaunchError("scontrol: Unable to contact slurm controller")

    monkeypatch.setattr(commands, "run_command", refuse)
    assert why_it_ends(7) == ""


@pytest.mark.parametrize(
    ("reason", "is_final"),
    [
        ("PartitionNodeLimit", True),
        ("QOSMaxGRESPerJob", True),
        ("AssocMaxCpuPerJobLimit", True),
        ("Resources", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("ReqNodeNotAvail, UnavailableNodes:node2", False),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
         " partitions", False),
    ],
)  # fmt: skip
def test_jobs_that_wait_for_others_may_start(
    monkeypatch: pytest.MonkeyPatch, reason: str, is_final: bool
) -> None:
    monkeypatch.setattr(commands, "run_command", lambda command: "")
    assert bool(why_never(reason, "main")) is is_final
    monkeypatch.setattr(commands, "run_command", lambda command: "1\n")  # drained nodes
    assert not why_never(reason, "main")
    monkeypatch.setattr(commands, "run_command", lambda command: f"RUNNING|{reason}|N/A|main\n")
    assert job_state(7).never == ""


def test_a_job_with_a_lost_node_does_not_wait_for_srun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the node, also when it is asked to end: the other nodes were held for it."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
    srun.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "logs").mkdir()
    nodes = SlurmNodes(tmp_path, "1", [], {})
    begun = time.monotonic()
    nodes.end(at_once=True)
    assert nodes.ended
    assert time.monotonic() - begun < 5
