"""The memory of ranks that are held after a run, for lists of runs."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbmgpu.formatting import format_bytes
from nbmgpu.runs.held_ranks import are_held
from nbmgpu.runs.run import Run
from nbmgpu.system.processes import process_is_alive

if TYPE_CHECKING:
    from .run_line import RunLine


def held_memory(folder: Path) -> int:
    """Return the bytes of memory, on host and GPUs, of ranks that are held since a run; else 0.

    That of the host counts now, that of GPUs when the last cell ended.
    """
    if not are_held(folder):  # the common case, by looking for one file
        return 0
    total = 0
    with suppress(OSError, ValueError, TypeError):  # the folder is being removed
        run = Run(folder)
        run.refresh()
        for rank in run.view.ranks:
            if rank.process is None or not process_is_alive(
                rank.process.pid, rank.process.create_time
            ):
                continue
            with suppress(psutil.Error):
                total += psutil.Process(rank.process.pid).memory_info().rss
            if rank.heartbeat is not None:
                total += max(int(rank.heartbeat.gpu_memory), 0)
    return total


def with_held_ranks(line: RunLine, folder: Path) -> RunLine:
    """Return ``line``, which may be cached, with the memory of ranks that its run holds now."""
    nbytes = held_memory(folder)
    if not nbytes:
        return line
    headline = f"{line.headline}, ranks held: {format_bytes(nbytes)}"
    return dataclasses.replace(line, headline=headline)
