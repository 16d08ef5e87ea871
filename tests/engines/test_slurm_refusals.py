"""What to type where Slurm's accounting refuses a job; the words are those of Slurm 22.05."""

from __future__ import annotations

import pytest

from nbmgpu.engines.slurm import refusal
from nbmgpu.engines.slurm.refusal import explained
from nbmgpu.errors import LaunchError, split_remedy

FAILED = "sbatch: Batch job submission failed: "
ACCOUNT = f"{FAILED}Invalid account or account/partition combination specified"
QOS = f"{FAILED}Invalid qos specification"
POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's "
    "size and/or time limits)"
)
ASSOC = "team||low,normal|cpu=4|\nroot||normal|||\n"
LOW = "low|node=1|01:00:00\n"


@pytest.fixture
def accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_command(command: list[str], timeout: float) -> str:
        assert command[:4] == ["sacctmgr", "-n", "-P", "show"]
        return ASSOC if command[4] == "assoc" else LOW

    monkeypatch.setattr(refusal, "run_command", run_command)


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize(
    ("said", "options", "what", "instead"),
    [
        (ACCOUNT, {"account": "nope"}, "Your accounts: team, root", "account=team"),
        (ACCOUNT, {}, "refuses a job without account=", "account=team"),
        (QOS, {"qos": "x"}, "low, normal with account=team; normal with", "account=team,qos=low"),
        (
            QOS,
            {"qos": "x", "account": "root"},
            "normal with account=root",
            "account=root,qos=normal",
        ),
        (
            f"sbatch: QOSMaxWallDurationPerJobLimit; {POLICY}",
            {"qos": "low"},
            "the job may not take as long.\nLimits: QOS low: node=1, time=01:00:00",
            "--engine-option time=01:00:00",
        ),
        (f"sbatch: QOSMaxNodePerJobLimit; {POLICY}", {"qos": "low"}, "as many nodes", "--nodes 1"),
        (
            f"sbatch: AssocMaxCpuPerJobLimit; {POLICY}",
            {},
            "as many cores.\nLimits: account team: cpu=4",
            "cpus-per-rank",
        ),
        (f"sbatch: AssocGrpSubmitJobsLimit; {POLICY}", {}, "as many jobs as may be", "squeue --me"),
        (f"sbatch: QOSMaxBillingPerJobLimit; {POLICY}", {}, "as much", "sacctmgr show assoc"),
    ],
)
def test_a_refused_job_says_what_is_allowed(
    said: str, options: dict[str, str], what: str, instead: str
) -> None:
    text, remedy = split_remedy(explained(said, options))
    assert text.startswith("Slurm refuses ")
    assert what in text
    assert instead in remedy


def test_without_accounting_the_message_says_how_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_command(command: list[str], timeout: float) -> str:
        raise LaunchError("There is no sacctmgr on this machine")

    monkeypatch.setattr(refusal, "run_command", run_command)
    text, remedy = split_remedy(explained(ACCOUNT, {"account": "nope"}))
    assert text.startswith("Slurm refuses account=nope: there is none")
    assert remedy.startswith("sacctmgr show assoc user=")


@pytest.mark.usefixtures("accounting")
def test_other_refusals_stay_as_they_are() -> None:
    said = f"{FAILED}invalid partition specified: x"
    assert explained(said, {}) == said
