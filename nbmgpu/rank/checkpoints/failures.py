"""Checkpoints that cannot be written: a notice says why, and the cell goes on."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from nbmgpu.formatting import format_bytes
from nbmgpu.rank.files.writes import unpatched
from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.runs.preallocation import require_space

NOT_WRITTEN = (
    "The checkpoint after step {step} could not be written: {error}. The cell goes on; the next "
    "checkpoint is tried again."
)


def discard(folder: Path, step: int, nbytes: int, cause: str, recorder: Recorder) -> None:
    """Remove what there is of a checkpoint in ``folder``; a notice says why.

    Args:
        folder: of the checkpoint.
        step: that it was to be written after.
        nbytes: size of its tensors.
        cause: the error, see ``text_of``.
        recorder: takes the notice.
    """
    text = NOT_WRITTEN.format(step=step, error=_missing_space(folder, nbytes) or cause)
    recorder.notice("checkpoint-failed", text)
    with unpatched():  # rank 0 alone removes it
        shutil.rmtree(folder, ignore_errors=True)


def text_of(error: BaseException) -> str:
    """Return the first cause of ``error``, on one line."""
    failures = getattr(error, "failures", None)  # CheckpointException: by rank
    if failures:
        error = next(iter(failures.values()))[0]
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")


def _missing_space(folder: Path, nbytes: int) -> str:
    """Return how much space is missing on the disk; empty if none is.

    On a full disk torch's writer of archives fails by an assertion.
    """
    needed = format_bytes(nbytes)
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < nbytes:
            left = format_bytes(free)
            return f"no space left on the disk ({left} are free, of {needed} for its tensors)"
    try:
        require_space(folder, nbytes)
    except OSError as error:
        if error.errno == errno.EDQUOT:
            return f"disk quota exceeded ({needed} are needed for its tensors)"
    return ""
