"""Which run replaces one whose rank was killed, or that hung: a file in the folder of that run.

The kernel starts such a run again.  Where it has ended, or does not answer, the launcher of a run
that outlives it does: whoever creates the file first.  It is empty until the new run has started.
"""

from __future__ import annotations

import time
from pathlib import Path

from nbmgpu.errors import LaunchError

from .folder import REPLACED_FILE, write_atomically
from .run import Run

START_TIMEOUT = 150.0
"""Seconds within which a run that is to replace another one has started."""

POLL = 0.1
"""Seconds between two looks."""


def claim(failed: Run) -> bool:
    """Return whether this process is to start a run in place of ``failed``, and no other is."""
    try:
        (failed.folder / REPLACED_FILE).touch(0o600, exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the folder was removed, or the disk is full: nobody else can do it, either
        return True
    return True


def publish(failed: Run, run: Run) -> None:
    """Let those who follow ``failed`` go on with ``run``, which has started."""
    if failed.folder.exists():
        write_atomically(failed.folder / REPLACED_FILE, run.id)


def withdraw(failed: Run) -> None:
    """Say that no run replaces ``failed``: it could not be started."""
    (failed.folder / REPLACED_FILE).unlink(missing_ok=True)


def is_claimed(failed: Run) -> bool:
    """Return whether a process starts a run in place of ``failed``, or has done so."""
    return (failed.folder / REPLACED_FILE).exists()


def replacement_of(failed: Run) -> Run | None:
    """Return the run that has replaced ``failed``, with none of its events read; None if none."""
    try:
        name = (failed.folder / REPLACED_FILE).read_text()
        return Run(failed.folder.parent / Path(name).name) if name else None
    except (OSError, ValueError, TypeError):
        return None


def newest_of(run: Run) -> Run:
    """Return the run that goes on in place of ``run``: itself, unless it was replaced."""
    while (following := replacement_of(run)) is not None:
        run = following
    return run


def wait_for_replacement(failed: Run) -> Run:
    """Return the run that another process starts in place of ``failed``.

    Raises:
        LaunchError: it cannot be started.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while (run := replacement_of(failed)) is None:
        if not is_claimed(failed) or time.monotonic() > deadline:
            raise LaunchError(
                f"Run {failed.id} was to start again from its launcher, and could not: its log, "
                f"{failed.folder / 'logs' / 'launcher.log'}, says why."
            )
        time.sleep(POLL)
    return run
