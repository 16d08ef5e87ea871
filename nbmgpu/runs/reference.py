"""Files that ranks share with the reference, which runs the cell on one device beside them."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from .folder import REFERENCE_ENDED, REFERENCE_ERROR, REFERENCE_FOLDER, write_atomically

NUMBER = re.compile(r"\d+")

FAILURE = re.compile(r"the cell raises (.*) there", re.DOTALL)
"""Matches a reason of ``reason_of_failure`` for an exception."""


def step_file(run_folder: Path, rank: int) -> Path:
    """Return the file with the gradients of a rank; see ``nbmgpu.rank.reference``."""
    return run_folder / REFERENCE_FOLDER / f"rank-{rank}.steps"


def has_steps(run_folder: Path) -> bool:
    """Return whether rank 0 has taken a step."""
    steps = step_file(run_folder, 0)
    return steps.exists() and steps.stat().st_size > 0


def has_reference(run_folder: Path) -> bool:
    """Return whether a reference was started."""
    return (run_folder / REFERENCE_FOLDER).exists()


def is_verified_now(run_folder: Path) -> bool:
    """Return whether there is a reference that compares."""
    folder = run_folder / REFERENCE_FOLDER
    return folder.exists() and not (folder / REFERENCE_ENDED).exists()


def begin(run_folder: Path) -> None:
    """Let ranks record their gradients, unless the disk is full."""
    with suppress(OSError):
        (run_folder / REFERENCE_FOLDER).mkdir()


def end(run_folder: Path) -> None:
    """Let ranks record no more."""
    with suppress(OSError):  # the disk is full, or the folder was removed
        if has_reference(run_folder):
            (run_folder / REFERENCE_FOLDER / REFERENCE_ENDED).touch()


def write_error(run_folder: Path, text: str) -> None:
    """Let ranks know by which exception the cell ends on one device."""
    with suppress(OSError):
        write_atomically(run_folder / REFERENCE_FOLDER / REFERENCE_ERROR, text)


def has_error_like(run_folder: Path, failure: str) -> bool:
    """Return whether ``write_error`` has written ``failure``, perhaps with other numbers.

    A text may have the size of a batch, or of a shard.
    """
    try:
        written = (run_folder / REFERENCE_FOLDER / REFERENCE_ERROR).read_text()
    except OSError:
        return False
    return NUMBER.sub("#", written) == NUMBER.sub("#", failure)


def reason_of_failure(failure: str) -> str:
    """Return why the comparison ends where the cell fails on one device, too."""
    return f"the cell {failure} there"


def failure_of(reason: str) -> str:
    """Return the type and message of the exception in ``reason``; empty if there is none."""
    found = FAILURE.fullmatch(reason)
    return found[1] if found else ""


def remove(run_folder: Path) -> None:
    """Remove what ranks have recorded, once all processes of the run have ended."""
    shutil.rmtree(run_folder / REFERENCE_FOLDER, ignore_errors=True)
