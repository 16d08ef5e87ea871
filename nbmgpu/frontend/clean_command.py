"""``%mgpu clean``: removes old and large runs, and says what all runs take on the disk."""

from __future__ import annotations

from collections.abc import Sequence

from nbmgpu.errors import format_message
from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.options.clean_options import CleanOptions
from nbmgpu.runs import cleaning
from nbmgpu.runs.cleaning import CleanCriteria, RunSize
from nbmgpu.runs.folder import runs_root
from nbmgpu.runs.run_list import iter_runs

EXAMPLE = "%mgpu clean --older 7d --keep-tagged"


def clean_text(rest: str) -> str:
    """Remove the runs that the options in ``rest`` select; return what has come of it.

    Without an age or a size, nothing is removed.

    Raises:
        OptionError: an option is unknown or malformed.
    """
    options = CleanOptions.parse(rest)
    all_runs = cleaning.sizes(iter_runs())
    if not options.older and not options.larger:
        what = f"{_amount(all_runs)} in {runs_root()}"
        hint = "Without --older or --larger, nothing is removed" if rest else ""
        return format_message(what, hint, instead=EXAMPLE)
    criteria = CleanCriteria(options.seconds, options.nbytes, options.keep_tagged)
    found = cleaning.meeting(all_runs, criteria)
    waiting = [each for each in found if cleaning.awaits_write_back(each.run)]
    chosen = _others(found, waiting)
    if options.dry_run:
        lines = [f"{each.run.id}  {format_bytes(each.nbytes)}" for each in chosen]
        parts = [f"Would remove {_amount(chosen)} of {_amount(all_runs)}.", *lines]
    else:
        removed = cleaning.remove(chosen)
        parts = [f"Removed {_amount(removed)}; {_amount(_others(all_runs, removed))} left."]
        parts += [
            f"{each.run.folder} cannot be removed, or not as a whole."
            for each in _others(chosen, removed)
        ]
    parts += [
        f"{each.run.id} stays: %mgpu attach {each.run.id} writes its results back."
        for each in waiting
    ]
    return "\n".join(parts)


def _amount(runs: Sequence[RunSize]) -> str:
    nbytes = sum(each.nbytes for each in runs)
    return f"{format_count(len(runs), 'run')} with {format_bytes(nbytes)}"


def _others(runs: Sequence[RunSize], without: Sequence[RunSize]) -> list[RunSize]:
    ids = {each.run.id for each in without}
    return [each for each in runs if each.run.id not in ids]
