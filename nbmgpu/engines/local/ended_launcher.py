"""What the fork server does for a launcher that was killed, or has failed, before it was done.

The kernel may wait for a launcher that has not reported that it has started.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended
from nbmgpu.runs.run import Run

from .cleanup import remove_folders

ORPHAN_TIMEOUT = 1.0
"""Seconds to wait for what a killed launcher leaves behind, after it was killed as well."""


def kill_orphans(is_known: Callable[[int], bool]) -> None:
    """Kill the children of this process that a launcher has left to it.

    Args:
        is_known: whether the child with that pid is its own.
    """
    for child in psutil.Process().children():
        if not is_known(child.pid):
            with suppress(psutil.Error):
                child.kill()
                child.wait(ORPHAN_TIMEOUT)


def report_end(folder: Path, code: int) -> None:
    """Record that the run in ``folder`` has ended, and remove the folders of its ranks.

    Args:
        folder: the run folder.
        code: the exit code of the launcher; negative for a signal.
    """
    remove_folders(folder)
    with suppress(OSError, ValueError, TypeError):  # the disk is full, or the folder was removed
        run = Run(folder, ranks=0)
        run.refresh()
        if run.view.ended is None:
            events = EventWriter(run.events_path("launcher"), LAUNCHER)
            detail = f"Run {run.id} ended without a report: its launcher {_ending(code)}."
            events.emit(Ended, ending="failed", detail=detail)
            events.close()


def _ending(code: int) -> str:
    if code >= 0:
        return f"has failed with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return f"was killed by {name}" if name == "SIGKILL" else f"was ended by {name}"
    return f"was ended by signal {-code}"
