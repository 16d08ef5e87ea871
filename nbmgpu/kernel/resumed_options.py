"""The options of a run that resumes another one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from nbmgpu.errors import OptionError, format_message
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.checkpoint import DESCRIPTION, NEWEST, Checkpoint, checkpoints_of
from nbmgpu.runs.run import Run, find_run, list_runs

MAGIC_LINE = re.compile(r"\A\s*# %%mgpu.*")
"""The line of the magic in the source of a cell, which has the options."""

WITHOUT = "the cell without --resume, with --checkpoint-every 10m"


def with_checkpoint(options: RunOptions, cell: str, notebook: str) -> RunOptions:
    """Return ``options`` with the folder of the checkpoint that ``--resume`` asks for.

    A cell that had started again with whole batches goes on with them.

    Raises:
        OptionError: there is no checkpoint of this cell.
    """
    if options.resume is None:
        return options
    checkpoint, run = find_checkpoint(options.resume, cell, notebook)
    options = dataclasses.replace(options, resume=str(checkpoint.folder))
    if options.may_restart and run.record.options.values.get("exact") == "always":
        options = dataclasses.replace(options, exact="always")
    return options


def options_after_failure(options: RunOptions, failed: Run) -> RunOptions:
    """Return the options of the run that replaces one whose rank was killed."""
    checkpoints = checkpoints_of(failed)
    resume = str(checkpoints[-1].folder) if checkpoints else options.resume
    return dataclasses.replace(options, resume=resume, max_restarts=options.max_restarts - 1)


def resumed_notice(options: RunOptions) -> str:
    """Return where a run goes on; empty for one that starts anew."""
    if options.resume is None:
        return ""
    checkpoint = Checkpoint(Path(options.resume))
    return f"Resumed after step {checkpoint.step} of run {checkpoint.folder.parents[1].name}."


def find_checkpoint(resume: str, cell: str, notebook: str) -> tuple[Checkpoint, Run]:
    """Return the checkpoint that ``--resume`` asks for, and its run.

    Args:
        resume: ``newest``, the beginning of a run's id, or the folder of a checkpoint.
        cell: the cell that is to go on.
        notebook: path of its notebook.

    Raises:
        OptionError: there is none, or it is of another cell.
    """
    if (Path(resume) / DESCRIPTION).is_file():
        checkpoint = Checkpoint(Path(resume))
        return checkpoint, _checked(Run(checkpoint.folder.parents[1]), cell)
    if resume != NEWEST:
        run = _checked(find_run(resume), cell)
        if not (found := checkpoints_of(run)):
            what = f"Run {run.id} has no checkpoint"
            raise OptionError(format_message(what, instead=WITHOUT))
        return found[-1], run
    for run in list_runs():
        is_same = is_same_cell(run.cell, cell) and run.record.kernel.notebook == notebook
        if is_same and (found := checkpoints_of(run)):
            return found[-1], run
    what = "No run of this cell has a checkpoint"
    raise OptionError(format_message(what, "The cell must be as it was", WITHOUT))


def is_same_cell(one: str, other: str) -> bool:
    """Return whether two cells are the same below the line of their magic."""
    return MAGIC_LINE.sub("", one).strip() == MAGIC_LINE.sub("", other).strip()


def _checked(run: Run, cell: str) -> Run:
    if is_same_cell(run.cell, cell):
        return run
    what = f"Run {run.id} was of another cell"
    reason = "A cell goes on where a checkpoint of the same cell was written"
    raise OptionError(format_message(what, reason, "--resume, for the newest run of this cell"))
