"""Releases ranks that are held: what they hold is written back, or discarded, and they end."""

from __future__ import annotations

import dataclasses

from nbmgpu.errors import OptionError, format_message
from nbmgpu.options.run_options import DEFAULTS, RunOptions
from nbmgpu.runs.run import Run

from . import held_ranks
from .execution import Execution
from .executor import execute
from .notebook_context import NotebookContext
from .run_display import DisplayFactory

CELL = "pass  # %mgpu release"
"""The cell that writes back what ranks hold: an ordinary one, after which they are not held."""

OF_A_RUN = ("steps", "timeout", "name", "tag", "pull", "seed")
"""Options of the cell that began to hold the ranks, and not of those that follow."""


def release(display: DisplayFactory, discard: bool = False, overwrite: bool = False) -> Run | None:
    """End the ranks that are held; write models and optimizers back unless they are to ``discard``.

    With ``overwrite``, what the notebook has changed meanwhile does not count.

    Returns:
        The run that has written them back.

    Raises:
        OptionError: none are held, or the notebook has changed what they hold.
        BaseException: see ``nbmgpu.run``.
    """
    held = held_ranks.current()
    if held is None:
        what = "No ranks are held"
        raise OptionError(format_message(what, instead="%%mgpu --hold above a cell that trains"))
    if discard:
        held.end()
        return None
    if overwrite:
        held.ignore_changes()
    held.check_unchanged()
    values = dataclasses.asdict(held.options) | {name: DEFAULTS[name] for name in OF_A_RUN}
    options = RunOptions(**values | {"hold": False, "name": held_ranks.RELEASE})
    context = NotebookContext.current()
    return execute(Execution(CELL, held.namespace, options, context, held=held), display)
