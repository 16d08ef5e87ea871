"""Where each rank of a hanging run waits, and the likely cause, in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from nbmgpu.errors import SAME_STEPS_HINT
from nbmgpu.runs.events import Started
from nbmgpu.runs.stacks import Collective, StackFrame
from nbmgpu.system.processes import process_is_alive

SLEEP = re.compile(r"\bsleep\(")
LOCK = re.compile(r"\.acquire\(|\bwith\b.*lock|\.wait\(|\.join\(|\.result\(|\.get\(", re.IGNORECASE)
LOADER_FILE = re.compile(r"torch[/\\]utils[/\\]data[/\\]dataloader\.py$")
COLLECTIVE_FILE = re.compile(
    r"torch[/\\]distributed[/\\](distributed_c10d|_functional_collectives)\.py$"
    r"|nbmgpu[/\\]strategies[/\\]collectives\.py$"
)
EXCHANGE_FILE = re.compile(r"nbmgpu[/\\]strategies[/\\]shared_memory[/\\]number_stream\.py$")
STORE_FILE = re.compile(r"nbmgpu[/\\]rank[/\\]store[/\\]")
FOLDED = 40
"""Maximum frames of a stack that are shown."""


@dataclass(frozen=True)
class RankEvidence:
    """What is known of one rank of a hanging run.

    Attributes:
        rank: its number.
        line: the line of the cell at its last heartbeat, 0 if unknown.
        silent: whether it sends no heartbeats.
        computing: whether it uses the processor and sends heartbeats.
        over: whether its cell has ended.
        stack: of its main thread, outermost frame first; empty if it did not answer.
        collective: its last one, if known.
        suspended: whether its process is stopped by a signal.
        pid: of its process, 0 if it is not on this machine.
        broken_workers: pids of children that are suspended or dead, and not waited for.
    """

    rank: int
    line: int = 0
    silent: bool = False
    computing: bool = False
    over: bool = False
    stack: Sequence[StackFrame] = ()
    collective: Collective | None = None
    suspended: bool = False
    pid: int = 0
    broken_workers: Sequence[int] = ()

    @property
    def user_frame(self) -> StackFrame | None:
        """The innermost frame of the user's code."""
        return next((frame for frame in reversed(self.stack) if frame.of_user), None)

    @property
    def waits_in_collective(self) -> str:
        """The collective that its stack, or the recorder, says it waits in; else empty."""
        named = [f.function for f in self.stack if COLLECTIVE_FILE.search(f.file)]
        if self.collective is not None and self.collective.pending and not self.silent:
            return self.collective.operation
        names = [name for name in named if name != "wait" and not name.startswith("_")]
        exchanges = any(EXCHANGE_FILE.search(frame.file) for frame in self.stack)
        return names[0] if names else "all_reduce" if exchanges else ""

    @property
    def waits_for_value_of_rank_0(self) -> bool:
        """Whether it waits for a value that rank 0 sends, as at the beginning of a loop."""
        return any(STORE_FILE.search(frame.file) for frame in self.stack)

    @property
    def waits_for_loader(self) -> bool:
        """Whether it waits for the workers of a DataLoader."""
        return any(
            LOADER_FILE.search(f.file) and f.function in ("_get_data", "_try_get_data")
            for f in self.stack
        )


def process_states(process: Started | None) -> tuple[bool, int, list[int]]:
    """Return whether a rank's process is suspended, its pid, and its broken children.

    ``(False, 0, [])`` if it is not a process of this machine.
    """
    if process is None or not process_is_alive(process.pid, process.create_time):
        return False, 0, []
    broken: list[int] = []
    with suppress(psutil.Error):
        of_rank = psutil.Process(process.pid)
        for child in of_rank.children():
            with suppress(psutil.Error):
                if child.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    broken.append(child.pid)
        return of_rank.status() == psutil.STATUS_STOPPED, process.pid, broken
    return False, 0, []


@dataclass(frozen=True)
class CellSource:
    """The lines of the cell, and of the user's files."""

    cell: list[str]
    files: dict[str, list[str]] = field(default_factory=dict)

    def text(self, frame: StackFrame) -> str:
        """Return the source of a frame's line, empty if unknown."""
        lines = self.cell if frame.in_cell else self._file(frame.file)
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    def _file(self, path: str) -> list[str]:
        if path not in self.files:
            try:
                self.files[path] = Path(path).read_text(errors="replace").splitlines()
            except (OSError, ValueError):
                self.files[path] = []
        return self.files[path]


def format_stack(stack: Sequence[StackFrame], source: CellSource) -> str:
    """Return the user's frames, and of the library's only the innermost one."""
    if not stack:
        return ""
    shown = [frame for frame in stack if frame.of_user][-FOLDED:]
    if not stack[-1].of_user:
        shown.append(stack[-1])
    return "\n".join(_frame_line(frame, source) for frame in shown)


def _frame_line(frame: StackFrame, source: CellSource) -> str:
    if frame.in_cell:
        where = f"line {frame.line} of the cell"
    else:
        where = f"{_short(frame.file)}, line {frame.line}"
    name = "" if frame.function == "<module>" else f", in {frame.function}"
    text = source.text(frame) if frame.of_user else ""
    return f"{where}{name}" + (f": {text}" if text else "")


def _short(file: str) -> str:
    """Return the path inside of ``site-packages``, or the whole path."""
    return re.split(r"[/\\](?:site|dist)-packages[/\\]", file)[-1]


def place(evidence: RankEvidence, source: CellSource) -> str:
    """Return where a rank waits: ``Rank 1 waits in all_reduce, line 3 of the cell: ...``."""
    what = _activity(evidence, source)
    frame = evidence.user_frame
    where = f", {_frame_line(frame, source)}" if frame is not None else ""
    if not evidence.stack and 0 < evidence.line <= len(source.cell):
        text = source.cell[evidence.line - 1].strip()
        where = f", last seen at line {evidence.line} of the cell: {text}"
    return f"Rank {evidence.rank} {what}{where}"


def _activity(evidence: RankEvidence, source: CellSource) -> str:
    frame = evidence.user_frame
    text = source.text(frame) if frame is not None else ""
    if evidence.suspended:
        return f"is suspended (SIGSTOP, process {evidence.pid})"
    if evidence.over:
        return "has come to the end of the cell"
    if operation := evidence.waits_in_collective:
        return f"waits in {operation}{_details(evidence.collective)}"
    if evidence.waits_for_value_of_rank_0:
        return "waits for a value from rank 0"
    if evidence.waits_for_loader:
        return "waits for DataLoader workers"
    if evidence.silent:
        return "runs compiled code that keeps Python's interpreter lock"
    if evidence.computing:
        return "computes"
    if SLEEP.search(text):
        return "sleeps"
    if LOCK.search(text):
        return "waits for a lock, a thread or a process"
    return "waits, and does not use the processor"


def _details(collective: Collective | None) -> str:
    if collective is None or not collective.pending:
        return ""
    shape = f" of {collective.shape}" if collective.shape else ""
    return f"{shape} (number {collective.sequence_number:,})"


@dataclass(frozen=True)
class Diagnosis:
    """The likely cause of a hang, and what to do."""

    cause: str
    remedy: str


def diagnose(ranks: Sequence[RankEvidence], source: CellSource) -> Diagnosis:
    """Return the likely cause: the most certain one comes first."""
    for rank in ranks:
        if rank.suspended:
            return Diagnosis(
                f"Rank {rank.rank} is suspended: something has sent SIGSTOP to its process",
                f"kill -CONT {rank.pid} in a terminal, to let it continue",
            )
        if rank.waits_for_loader:
            return _loader(rank)
    waiting = [rank for rank in ranks if rank.waits_in_collective]
    others = [rank for rank in ranks if not rank.waits_in_collective]
    if not others:
        return _collectives(ranks)
    if waiting and all(rank.over or rank.waits_for_value_of_rank_0 for rank in others):
        return _different_steps(waiting[0], others[0])
    if waiting:
        return _apart(waiting[0], others[0], source)
    return _no_collective(others[0], source)


def _loader(rank: RankEvidence) -> Diagnosis:
    if rank.broken_workers:
        pids = ", ".join(map(str, rank.broken_workers))
        return Diagnosis(
            f"A DataLoader worker of rank {rank.rank} is dead or suspended (process {pids})",
            "num_workers=0, to see an error of the dataset; fewer workers, if memory is short",
        )
    return Diagnosis(
        f"DataLoader workers of rank {rank.rank} do not return a batch: the dataset's "
        "__getitem__ or collate_fn waits, as for a lock that was held when the worker was forked",
        "num_workers=0, or a dataset that opens files and connections in the worker",
    )


def _collectives(ranks: Sequence[RankEvidence]) -> Diagnosis:
    known = [rank.collective for rank in ranks if rank.collective is not None]
    operations = {rank.waits_in_collective for rank in ranks}
    if len(operations) > 1:
        listed = " and ".join(sorted(operations))
        return Diagnosis(
            f"Ranks are in different collectives: {listed}", "the same collectives on all ranks"
        )
    if len({one.sequence_number for one in known}) > 1:
        return Diagnosis(
            "Ranks are in different collectives: some have run more of them than others",
            SAME_STEPS_HINT,
        )
    if len({one.shape for one in known}) > 1:
        return Diagnosis(
            "Ranks are in the same collective with tensors of different shapes",
            "tensors of the same shape on all ranks: pad them",
        )
    return Diagnosis(
        "All ranks wait in the same collective: their connection is broken, or slow",
        "a smaller model to see whether it ever continues; the network, if it is between machines",
    )


def _different_steps(waiting: RankEvidence, other: RankEvidence) -> Diagnosis:
    return Diagnosis(
        f"Ranks run different numbers of steps: rank {waiting.rank} waits for rank {other.rank}, "
        f"which {'has ended' if other.over else 'waits for rank 0'}",
        SAME_STEPS_HINT,
    )


def _apart(waiting: RankEvidence, other: RankEvidence, source: CellSource) -> Diagnosis:
    return Diagnosis(
        f"Rank {other.rank} has not reached the {waiting.waits_in_collective} that rank "
        f"{waiting.rank} waits in: it {_activity(other, source)}",
        "what only one rank does, outside of the loop, or on all ranks",
    )


def _no_collective(rank: RankEvidence, source: CellSource) -> Diagnosis:
    remedy = "a longer --hang-after, if that is meant"
    return Diagnosis(f"Rank {rank.rank} {_activity(rank, source)}", remedy)
