"""What a rank reports of a hang: its Python stack and its last collective.

Three files per rank in ``hang/`` of the run folder.  The supervisor sends ``STACK_SIGNAL``, on
which faulthandler writes the stack to ``rank-K.txt``: in a signal handler in C, and so also while
compiled code keeps the interpreter lock.  It creates the file ``request``, on which the rank's
heartbeat thread writes the last collective to ``rank-K.json``.  With each heartbeat that thread
writes the line of the cell to ``rank-K.line``.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from nbmgpu.system.library_files import LIBRARY_FILE

HANG_FOLDER = "hang"
REQUEST_FILE = "request"

STACK_SIGNAL: signal.Signals = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Not SIGUSR1 or SIGUSR2 where possible: job schedulers and cells use these."""

CELL_FILE_MARK = "nbmgpu-cell"
"""Part of the file name in a rank of code from the cell."""

NOTEBOOK_FILE = re.compile(r"<ipython-input-|ipykernel_\d+[/\\]")
"""Matches file names of code from other cells of the notebook."""

FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
THREAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)")
MAIN_THREAD = "main thread"


@dataclass(frozen=True)
class StackFrame:
    """A frame of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def in_cell(self) -> bool:
        """Whether its code is the cell's."""
        return CELL_FILE_MARK in self.file

    @property
    def of_user(self) -> bool:
        """Whether its code is the notebook's or of a module of the user."""
        if self.in_cell or NOTEBOOK_FILE.search(self.file):
            return True
        return not LIBRARY_FILE.search(self.file)


@dataclass(frozen=True)
class Collective:
    """A collective that a rank has begun.

    Attributes:
        operation: such as ``all_reduce``.
        shape: of its input on this rank, or its size, as text.
        sequence_number: its number among the collectives of its group on this rank.
        pending: whether it has not finished.
    """

    operation: str
    shape: str
    sequence_number: int
    pending: bool


def stack_path(folder: Path, rank: int) -> Path:
    """Return the file of the stacks of ``rank``."""
    return folder / HANG_FOLDER / f"rank-{rank}.txt"


def collective_path(folder: Path, rank: int) -> Path:
    """Return the file of the last collective of ``rank``."""
    return folder / HANG_FOLDER / f"rank-{rank}.json"


def line_path(folder: Path, rank: int) -> Path:
    """Return the file of the line that ``rank`` was at in its last heartbeat."""
    return folder / HANG_FOLDER / f"rank-{rank}.line"


def read_line(folder: Path, rank: int) -> int:
    """Return the line of the cell that ``rank`` was at in its last heartbeat, 0 if unknown."""
    try:
        return int(line_path(folder, rank).read_bytes())
    except (OSError, ValueError):
        return 0


def request_path(folder: Path) -> Path:
    """Return the file whose creation asks all ranks for their last collective."""
    return folder / HANG_FOLDER / REQUEST_FILE


def read_stack(folder: Path, rank: int, offset: int) -> list[StackFrame]:
    """Return the main thread's stack that ``rank`` has written after ``offset``, outermost first.

    Empty if there is none, or if it is not complete yet.
    """
    try:
        with stack_path(folder, rank).open(errors="replace") as file:
            main = file.readline().removeprefix(MAIN_THREAD).strip()
            file.seek(max(offset, file.tell()))
            lines = file.read().splitlines()
    except OSError:
        return []
    if not main:  # the disk was full
        return []
    frames: list[StackFrame] = []
    is_main = False
    for line in lines:
        if (thread := THREAD.match(line)) is not None:
            is_main = int(thread["ident"], 16) == int(main, 16)
        elif is_main and (frame := FRAME.match(line)) is not None:
            frames.append(StackFrame(frame["file"], int(frame["line"]), frame["function"]))
    return frames[::-1]


def read_collective(folder: Path, rank: int) -> Collective | None:
    """Return the last collective that ``rank`` has reported, None if it has not."""
    try:
        return Collective(**json.loads(collective_path(folder, rank).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
