"""Folders that are full, beyond a quota, read-only or removed, and memory that is limited.

``tests/kernel/test_resource_limits.py`` fills ``/dev/shm``, and the disk by output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import HALF, LARGE, Case, Expected
from driver import Fault
from fault_notebook import TRAIN
from invariants import next_run_problems, problems, remove_runs, summary
from sessions import PlainSession, Session, can_mount

pytestmark = [
    pytest.mark.skipif(not can_mount, reason="mounting is not permitted"),
    pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel", "nbmgpu/rank", "nbmgpu/runs"),
]

SMALL = 'mount -t tmpfs -o size=8m tmpfs "$NBMGPU_RUNS"'
QUOTA = (
    'truncate -s 160M "$FAULTS_FOLDER/disk" && mkfs.btrfs -q "$FAULTS_FOLDER/disk" >&2'
    ' && mount -o loop "$FAULTS_FOLDER/disk" "$NBMGPU_RUNS"'
    ' && btrfs quota enable "$NBMGPU_RUNS" && btrfs qgroup limit 8M "$NBMGPU_RUNS"'
)
"""A disk with room, of which this user may use 8 MiB; btrfs, whose quotas hold for root, too."""

DISKS = {"no space left on": SMALL, "disk quota exceeded": QUOTA}
"""What is mounted, by the beginning of the error."""

FULL = {
    "no space left on": Expected(),
    # btrfs lets nobody write into space that is reserved, so the end of the run is not reported.
    "disk quota exceeded": Expected("LaunchError|", "your quota is used up|", "all"),
}

READ_ONLY = 'mount -t tmpfs -o ro tmpfs "$NBMGPU_RUNS"'
MEMORY = Path("/sys/fs/cgroup/memory")

NewSession = Callable[..., Session]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewSession]:
    """Return the session in whose namespace a command has mounted something."""
    live: dict[str, Session] = {}

    def make(mounts: str = "") -> Session:
        if mounts not in live:
            session = live[mounts] = PlainSession(tmp_path_factory.mktemp("f"), mounts)
            session.ask(source="answer = 42", seconds=120)
            session.runs = Path(f"/proc/{session.pid}/root{session.runs}")
        return live[mounts]

    yield make
    for session in live.values():
        session.close()


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> str:
    """Return the error of a disk on which 8 MiB can be written."""
    if DISKS[request.param] == QUOTA and shutil.which("mkfs.btrfs") is None:
        pytest.skip("btrfs-progs is not installed")
    return str(request.param)


def fill(folder: Path) -> Path:
    """Write until the disk is full, or the quota is used up; return the file."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for _ in range(1 << 14):
            try:
                file.write(bytes(1 << 10))
            except OSError:
                return path
    raise AssertionError("this is not the small disk")


class Removal(Fault):
    """Removes a folder, or fills a disk, instead of sending a signal."""

    def __init__(self, session: Session, phase: str, act: Callable[[Removal], object]) -> None:
        super().__init__(session, Case("kernel", "STOP", phase))
        self.act = act
        self.options: dict[str, int] = {}

    def _request(self) -> dict[str, Any]:
        return super()._request() | {"options": self.options}

    def _hit(self) -> None:
        self.act(self)


@pytest.mark.parametrize("phase", ["training", "sending"])
def test_the_disk_fills_up(limited: NewSession, disk: str, phase: str) -> None:
    session = limited(DISKS[disk])
    fault = Removal(session, phase, lambda fault: fill(session.runs))
    fault.options = {"max_restarts": 1}  # a new run could not write either
    reply = fault.inject()
    assert reply is not None
    (session.runs / "filler").unlink()
    found = problems(session, FULL[disk], reply) + next_run_problems(session)
    remove_runs(session)
    assert not found, summary(fault.case, found)


def test_a_checkpoint_that_does_not_fit_is_said_and_the_cell_goes_on(
    limited: NewSession, disk: str
) -> None:
    session = limited(DISKS[disk])
    reply = session.ask(cell=TRAIN, options={"checkpoint_every": "10steps"}, **LARGE)
    found = problems(session, Expected(), reply, checkpoints=True)
    assert "could not be written" in reply["notices"]["checkpoint-failed"]
    assert disk in reply["notices"]["checkpoint-failed"]
    assert not list(session.runs.glob("*/checkpoints/step-*"))
    found += next_run_problems(session)
    remove_runs(session)
    assert not found, found


def test_a_read_only_folder_of_runs(limited: NewSession) -> None:
    reply = limited(READ_ONLY).ask(cell=TRAIN)
    assert reply["error"] == "LaunchError"
    assert "cannot be written: Read-only file system" in reply["text"]
    assert "set NBMGPU_RUNS" in reply["text"]
    assert reply["steps"] == 0
    assert not list(limited(READ_ONLY).shm.iterdir())


@pytest.mark.parametrize("what", ["the run's folder", "all runs"])
@pytest.mark.parametrize("phase", ["training", "sending"])
def test_the_folder_is_removed(limited: NewSession, phase: str, what: str) -> None:
    session = limited()

    def remove(fault: Removal) -> None:
        assert fault.run is not None
        for path in session.runs.iterdir() if what == "all runs" else [fault.run.folder]:
            shutil.rmtree(path)

    fault = Removal(session, phase, remove)
    reply = fault.inject()
    assert reply is not None
    expected = Expected("|LaunchError", "|folder was removed", "all")
    found = problems(session, expected, reply) + next_run_problems(session)
    assert not found, summary(fault.case, found)


@pytest.fixture
def control_group() -> Iterator[Path]:
    """Make a memory control group of version 1."""
    if not os.access(MEMORY, os.W_OK) or not (MEMORY / "cgroup.procs").exists():
        pytest.skip("control groups are not writable")
    group = MEMORY / f"nbmgpu-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups are not writable")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (MEMORY / "cgroup.procs").write_text(pid)
    group.rmdir()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_beyond_the_memory_of_the_control_group(
    tmp_path: Path, control_group: Path, rank: int
) -> None:
    session = PlainSession(tmp_path)
    try:
        session.ask(cell=TRAIN, seconds=120)
        for pid in session.processes():
            (control_group / "cgroup.procs").write_text(str(pid))
        (control_group / "memory.limit_in_bytes").write_text(str(3 << 30))
        grow = f"if dist.get_rank() == {rank}:\n    more = torch.ones(1 << 30)\ndist.barrier()\n"
        reply = session.ask(cell=f"{TRAIN}{grow}", names={"hold_at": f"{HALF}", "holding": "()"})
        state = "before" if rank == 0 else "all"
        words = f"(?s)Rank {rank} of 2 was ended by SIGKILL.*ran out of memory"
        found = problems(session, Expected("RankKilledError", words, state), reply)  # type: ignore[arg-type]
        found += next_run_problems(session)
        assert not found, found
    finally:
        session.close()
