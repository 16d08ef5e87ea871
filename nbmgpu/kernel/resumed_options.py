"""The options of a run that resumes another one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbmgpu.errors import CheckpointError, OptionError, format_message
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.text_format import exit_word
from nbmgpu.runs.checkpoint import (
    DESCRIPTION,
    NEWEST,
    STEP_FOLDER,
    Checkpoint,
    find_checkpoints,
)
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.preallocation import disk_is_full
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run, iter_runs
from nbmgpu.runs.view import NODE_LOST

from . import notices

MAGIC_LINE = re.compile(r"\A\s*# %%mgpu.*")
"""The line of the magic in the source of a cell, which has the options."""

RESTARTS = 3
"""How often a run that hangs starts again with ``--on-hang restart`` alone, at most."""

WITHOUT = "the cell without --resume, with --checkpoint-every 10m"


@dataclass(frozen=True)
class ResumedOptions:
    """The options of a run, and where it goes on.

    Attributes:
        options: with the folder of a checkpoint, or None, as ``resume``.
        notice: from which checkpoint it goes on, and which ones are damaged; empty for a run that
            starts anew.
    """

    options: RunOptions
    notice: str = ""


def with_checkpoint(options: RunOptions, cell: str, notebook: str) -> ResumedOptions:
    """Return ``options`` with the folder of the checkpoint that ``--resume`` asks for.

    They also say how often a run that hangs starts again.  A cell that had started again with
    whole batches goes on with them.

    Raises:
        CheckpointError: all checkpoints of this cell are damaged, or the one that is asked for.
        OptionError: there is no checkpoint of this cell.
        OwnershipError: another user may have written it.
    """
    if options.on_hang == "restart" and not options.max_restarts:
        options = dataclasses.replace(options, max_restarts=RESTARTS)
    if options.resume is None:
        return ResumedOptions(options)
    found = find_checkpoint(options.resume, cell, notebook)
    found.checkpoint.require_own()
    options = dataclasses.replace(options, resume=str(found.checkpoint.folder))
    if options.may_restart and found.run.record.options.values.get("exact") == "always":
        options = dataclasses.replace(options, exact="always")
    return ResumedOptions(options, _resumed_notice(found.checkpoint, found.damaged))


def reason_to_restart(options: RunOptions, ended: Run) -> str:
    """Return why a run that has ended starts again from its newest checkpoint, in a sentence.

    Empty if it does not: it was stopped, an exception has ended it, or no restart is left.
    """
    state, left = ended.state, options.max_restarts - 1
    if left < 0 or state not in ("failed", "lost") or ended.is_asked_to_stop:
        return ""
    if disk_is_full(ended.folder):  # a new run could not write, and results may be in memory
        return ""
    if (lost := ended.view.notices.get(NODE_LOST)) is not None:
        cause = lost.text.rstrip(".")
        return notices.NODE_LOST.format(run=ended.id, cause=cause, left=left)
    if state == "lost" or _has_lost_launcher(ended):
        return notices.LAUNCHER_LOST.format(run=ended.id, left=left)
    exited, hang = ended.view.first_silent_exit, ended.view.hang
    if exited is not None and exited.code < 0:
        word = exit_word(exited.code)
        return notices.KILLED.format(rank=exited.of_rank, exit=word, run=ended.id, left=left)
    if options.on_hang == "restart" and hang is not None and hang.stops:
        return notices.HUNG.format(run=ended.id, cause=hang.cause, left=left)
    return ""


def _has_lost_launcher(ended: Run) -> bool:
    """Return whether nobody has seen how ranks ended that had started: their launcher is lost."""
    ranks = ended.view.ranks
    seen = any(rank.exited or rank.failure for rank in ranks)
    return not seen and any(rank.process for rank in ranks)


def options_after_failure(options: RunOptions, failed: Run) -> ResumedOptions:
    """Return the options of the run that replaces one whose rank was killed, or that hung."""
    found = find_checkpoints(failed)
    resume = str(found.whole[-1].folder) if found.whole else options.resume
    options = dataclasses.replace(options, resume=resume, max_restarts=options.max_restarts - 1)
    checkpoint = None if resume is None else Checkpoint(Path(resume))
    return ResumedOptions(options, _resumed_notice(checkpoint, found.damaged))


def _resumed_notice(checkpoint: Checkpoint | None, damaged: list[CheckpointError]) -> str:
    """Return where a run goes on, and which later checkpoints it cannot go on from."""
    sentences = [str(error).partition("\n")[0] for error in damaged]
    if checkpoint is not None:
        run = checkpoint.folder.parents[1].name
        sentences.insert(0, f"Resumed after step {checkpoint.step} of run {run}.")
    return " ".join(sentences)


def earlier_curves(options: RunOptions) -> dict[str, Curve]:
    """Return the curves up to the checkpoint where a run goes on; none for one that starts anew."""
    if options.resume is None:
        return {}
    checkpoint = Checkpoint(Path(options.resume))
    run, ends = Run(checkpoint.folder.parents[1]), checkpoint.description.curves
    run.refresh()
    return {
        name: curve.until(ends.get(name, checkpoint.step))
        for name, curve in run.view.curves.items()
    }


@dataclass(frozen=True)
class FoundCheckpoint:
    """The checkpoint that ``--resume`` asks for.

    Attributes:
        checkpoint: it has all of its files.
        run: the run that has written it.
        damaged: what is the matter with checkpoints that the run, or a later one, has as well.
    """

    checkpoint: Checkpoint
    run: Run
    damaged: list[CheckpointError]


def find_checkpoint(resume: str, cell: str, notebook: str) -> FoundCheckpoint:
    """Return the checkpoint that ``--resume`` asks for: the newest undamaged one.

    Args:
        resume: ``newest``, the beginning of a run's id, or the folder of a checkpoint.
        cell: the cell that is to go on.
        notebook: path of its notebook.

    Raises:
        CheckpointError: all are damaged.
        OptionError: there is none, or it is of another cell.
    """
    folder = Path(resume).expanduser()
    if (folder / DESCRIPTION).is_file() or (folder.is_dir() and STEP_FOLDER in folder.name):
        checkpoint = Checkpoint(folder.resolve())  # through links: its run is beside it
        checkpoint.check()
        return FoundCheckpoint(checkpoint, _checked(_run_of(checkpoint), cell), [])
    if resume != NEWEST:
        runs: Iterable[Run] = [_checked(find_run(resume), cell)]
    else:
        runs = (
            run for run in iter_runs()
            if is_same_cell(run.cell, cell) and run.record.kernel.notebook == notebook
        )  # fmt: skip
    damaged: list[CheckpointError] = []
    for run in runs:
        found = find_checkpoints(run)
        damaged += reversed(found.damaged)
        if found.whole:
            return FoundCheckpoint(found.whole[-1], run, damaged)
    if damaged:
        raise damaged[0]
    if resume != NEWEST:
        what = f"Run {find_run(resume).id} has no checkpoint"
        raise OptionError(format_message(what, instead=WITHOUT))
    what = "No run of this cell has a checkpoint"
    raise OptionError(format_message(what, "The cell must be as it was", WITHOUT))


def _run_of(checkpoint: Checkpoint) -> Run:
    """Return the run that has written a checkpoint.

    Raises:
        OptionError: it is not in the folder of a run.
    """
    try:
        return Run(checkpoint.folder.parents[1])
    except (OSError, ValueError, TypeError, IndexError):
        what = f"{checkpoint.folder} is not in the folder of its run, which tells the cell"
        raise OptionError(format_message(what, instead="the path where the run wrote it")) from None


def is_same_cell(one: str, other: str) -> bool:
    """Return whether two cells are the same below the line of their magic."""
    return MAGIC_LINE.sub("", one).strip() == MAGIC_LINE.sub("", other).strip()


def _checked(run: Run, cell: str) -> Run:
    if is_same_cell(run.cell, cell):
        return run
    what = f"Run {run.id} was of another cell"
    reason = "A cell goes on where a checkpoint of the same cell was written"
    raise OptionError(format_message(what, reason, "--resume, for the newest run of this cell"))
