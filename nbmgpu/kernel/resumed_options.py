"""The options of a run that resumes another one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from nbmgpu.errors import OptionError, format_message
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.text_format import exit_word
from nbmgpu.runs.checkpoint import DESCRIPTION, NEWEST, Checkpoint, checkpoints_of
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.run import Run, find_run, list_runs

from . import notices

MAGIC_LINE = re.compile(r"\A\s*# %%mgpu.*")
"""The line of the magic in the source of a cell, which has the options."""

RESTARTS = 3
"""How often a run that hangs starts again with ``--on-hang restart`` alone, at most."""

WITHOUT = "the cell without --resume, with --checkpoint-every 10m"


def with_checkpoint(options: RunOptions, cell: str, notebook: str) -> RunOptions:
    """Return ``options`` with the folder of the checkpoint that ``--resume`` asks for.

    They also say how often a run that hangs starts again.  A cell that had started again with
    whole batches goes on with them.

    Raises:
        OptionError: there is no checkpoint of this cell.
        OwnershipError: another user may have written it.
    """
    if options.on_hang == "restart" and not options.max_restarts:
        options = dataclasses.replace(options, max_restarts=RESTARTS)
    if options.resume is None:
        return options
    checkpoint, run = find_checkpoint(options.resume, cell, notebook)
    checkpoint.require_own()
    options = dataclasses.replace(options, resume=str(checkpoint.folder))
    if options.may_restart and run.record.options.values.get("exact") == "always":
        options = dataclasses.replace(options, exact="always")
    return options


def reason_to_restart(options: RunOptions, ended: Run) -> str:
    """Return why a run that has ended starts again from its newest checkpoint, in a sentence.

    Empty if it does not: it was stopped, an exception has ended it, or no restart is left.
    """
    is_allowed = options.max_restarts > 0 and not options.background
    if not is_allowed or ended.state != "failed" or ended.is_asked_to_stop:
        return ""
    exited, hang, left = ended.view.first_silent_exit, ended.view.hang, options.max_restarts - 1
    if exited is not None and exited.code < 0:
        word = exit_word(exited.code)
        return notices.KILLED.format(rank=exited.of_rank, exit=word, run=ended.id, left=left)
    if options.on_hang == "restart" and hang is not None and hang.stops:
        return notices.HUNG.format(run=ended.id, cause=hang.cause, left=left)
    return ""


def options_after_failure(options: RunOptions, failed: Run) -> RunOptions:
    """Return the options of the run that replaces one whose rank was killed, or that hung."""
    checkpoints = checkpoints_of(failed)
    resume = str(checkpoints[-1].folder) if checkpoints else options.resume
    return dataclasses.replace(options, resume=resume, max_restarts=options.max_restarts - 1)


def resumed_notice(options: RunOptions) -> str:
    """Return where a run goes on; empty for one that starts anew."""
    if options.resume is None:
        return ""
    checkpoint = Checkpoint(Path(options.resume))
    return f"Resumed after step {checkpoint.step} of run {checkpoint.folder.parents[1].name}."


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
