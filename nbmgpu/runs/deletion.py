"""Which runs may be deleted: those that nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.errors import OptionError, format_message

from .held_ranks import are_held

if TYPE_CHECKING:
    from .run import Run


def check_deletable(run: Run) -> None:
    """Check that the folder of ``run`` may be removed.

    Raises:
        OptionError: the run is active, its ranks are held, or its results have not been written
            back yet.
    """
    what = instead = ""
    if not run.over:
        what, instead = f"Run {run.id} is still running", f"%mgpu stop {run.id}"
    elif are_held(run.folder) and run.has_launcher:
        what = f"The ranks of run {run.id} are held for the next cell of its notebook"
        instead = "%mgpu release in that notebook, or end its kernel"
    elif run.to_collect:
        what = f"The results of run {run.id} are not in its notebook yet"
        instead = f"%mgpu attach {run.id} in that notebook, or end its kernel"
    if what:
        raise OptionError(format_message(what, instead=instead))
