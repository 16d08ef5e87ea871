"""Reports of a rank that makes no progress: its stack on a signal, its last collective on request.

Nothing is recorded while the cell runs: torch's flight recorder has the collectives, and the
collectives through shared memory count their own.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import json
import os
import pickle
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbmgpu.rank.source_analysis.stack_frames import current_cell_line
from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.stacks import (
    MAIN_THREAD,
    STACK_SIGNAL,
    Collective,
    collective_path,
    line_path,
    request_path,
    stack_path,
)


class HangReports:
    """Writes the reports of one rank.

    Attributes:
        folder: the run folder.
        rank: the rank of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        """Write this process's stack whenever it gets ``STACK_SIGNAL``."""
        self.folder = folder
        self.rank = rank
        self._answered = 0.0
        self._main_thread = threading.main_thread().ident or 0
        path = stack_path(folder, rank)
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("wb", buffering=0)  # the handler writes to its descriptor
        with suppress(OSError):  # the disk is full: there will be no stack
            self._file.write(f"{MAIN_THREAD} {self._main_thread:x}\n".encode())
        self._line_file = line_path(folder, rank).open("wb")
        faulthandler.register(STACK_SIGNAL, self._file, all_threads=True, chain=False)

    def update(self) -> None:
        """Write the line that the main thread is at, and what the supervisor has asked for.

        The line is for a process that is suspended later, and then cannot write its stack.
        """
        line = current_cell_line(sys._current_frames().get(self._main_thread))
        with suppress(OSError):
            os.pwrite(self._line_file.fileno(), f"{line:9}".encode(), 0)
        self._answer()

    def _answer(self) -> None:
        """Write the last collective if that was asked for since the last call."""
        try:
            asked = request_path(self.folder).stat().st_mtime
        except OSError:
            return
        if asked == self._answered:
            return
        self._answered = asked
        collective = shared_memory_collective() or recorded_collective()
        with suppress(OSError):
            content = json.dumps(collective and dataclasses.asdict(collective))
            write_atomically(collective_path(self.folder, self.rank), content)


def shared_memory_collective() -> Collective | None:
    """Return the collective through shared memory that this process waits in, if it does."""
    module = sys.modules.get("nbmgpu.strategies.collectives")
    shared = module and module.shared
    return None if shared is None else _as_collective(shared.pending())


def _as_collective(pending: tuple[str, int, int] | None) -> Collective | None:
    if pending is None:
        return None
    name, number, nbytes = pending
    return Collective(name, f"{nbytes:,} bytes", number, True)


def recorded_collective() -> Collective | None:
    """Return the newest collective that torch's flight recorder has, pending ones first.

    None where this version of torch has no recorder for all backends, or nothing is recorded.
    """
    if "torch.distributed" not in sys.modules:
        return None
    module: Any = importlib.import_module("torch._C._distributed_c10d")
    dump = getattr(module, "_dump_fr_trace", None)
    if dump is None:
        return None
    try:
        # The arguments: with collectives, without their stacks, not only active ones.
        entries = pickle.loads(dump(True, False, False)).get("entries", [])
    except Exception:  # the format is private to torch: the stacks remain
        return None
    if not entries:
        return None
    pending = [entry for entry in entries if not entry.get("retired")]
    entry = pending[0] if pending else entries[-1]
    shape = ", ".join(str(tuple(size)) for size in entry.get("input_sizes", ()))
    return Collective(
        operation=str(entry.get("profiling_name", "")).rpartition(":")[2],
        shape=shape,
        sequence_number=int(entry.get("collective_seq_id", 0)),
        pending=bool(pending),
    )
