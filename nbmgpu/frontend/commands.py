"""The commands of ``%mgpu``.

Each takes the rest of the line and returns the object to display.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

from nbmgpu import api
from nbmgpu.advisor.node_options import split_node_options
from nbmgpu.advisor.picker_state import PickerController
from nbmgpu.advisor.request import AdviceRequest
from nbmgpu.advisor.training_objects import TrainingObjects, find_training_objects
from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_bytes
from nbmgpu.kernel.executor import select_run
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.options.commands import INFO_OPTIONS
from nbmgpu.options.run_options import RunOptions
from nbmgpu.patches.report import patch_report
from nbmgpu.report.digest import quick_line_of
from nbmgpu.report.held_memory import held_memory
from nbmgpu.report.kept_summary import summary_of
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run, iter_runs

from .clean_command import clean_text
from .debug_command import debug_in
from .engine_command import engine_text
from .export_command import export_text
from .info import info_text

if TYPE_CHECKING:
    import pandas as pd

    from nbmgpu.advisor import Advice
    from nbmgpu.ui.picker import Picker


STOP_TIMEOUT = 10.0
"""Seconds that ``%mgpu stop`` waits for the run to end."""


class SummaryDisplay:
    """Displays the summary of a run in a notebook or a terminal."""

    def __init__(self, run: Run) -> None:
        """Display ``run``."""
        self.run = run

    def _repr_html_(self) -> str:
        return summary_of(self.run).html

    def __repr__(self) -> str:
        """Return the summary as text."""
        return summary_of(self.run).text


RELEASE_OPTIONS = ("--discard", "--overwrite")
"""Options of ``%mgpu release``."""


def runs(_rest: str) -> pd.DataFrame:
    """List the runs, newest first."""
    import pandas as pd

    rows = [
        {
            "run": line.id,
            "state": line.status.state,
            "strategy": line.strategy,
            "ranks": line.world_size,
            "started": datetime.datetime.fromtimestamp(line.created).strftime("%d %b %H:%M"),
            "seconds": round(line.duration, 1),
            "name": line.labels.name,
            "tags": ", ".join(line.labels.tags),
            "notebook": line.notebook,
            "held": format_bytes(nbytes) if (nbytes := held_memory(run.folder)) else "",
        }
        for run in iter_runs()
        for line in [quick_line_of(run)]
    ]
    columns = [
        "run", "state", "strategy", "ranks", "started", "seconds", "name", "tags", "notebook"
    ]  # fmt: skip
    if any(row["held"] for row in rows):
        columns.insert(2, "held")
    return pd.DataFrame(rows, columns=columns).set_index("run")


def show(rest: str) -> SummaryDisplay:
    """Show the state, curves, notices and folder of a run."""
    return SummaryDisplay(find_run(rest))


def attach(rest: str) -> None:
    """Attach to a run, and write its results back if this notebook or none has started it."""
    api.attach(rest)


def stop(rest: str) -> None:
    """Stop a run, by default the newest active one; a second call kills it at once."""
    print(stop_text(rest))


def stop_text(rest: str) -> str:
    """Do what ``stop`` does; return what has come of it."""
    run = select_run(rest)
    if run.over:
        held = " Its ranks are held: %mgpu release ends them." if held_memory(run.folder) else ""
        return f"Run {run.id} has already ended: {run.state}.{held}"
    run.stop(force=run.is_asked_to_stop)
    state = run.wait(timeout=STOP_TIMEOUT)
    if run.over:
        owner = "" if run.record.kernel.is_this_process else f" of {_owner(run)}"
        return f"Run {run.id}{owner}: {state}."
    again = f"%mgpu stop {run.id}  (kills the ranks at once; no results are written back)"
    what = f"Run {run.id} is stopping: rank 0 has five minutes to save the trained state"
    return format_message(what, instead=again)


def _owner(run: Run) -> str:
    return run.record.kernel.notebook or "another kernel"


def release(rest: str) -> None:
    """Write back what ranks hold, and end them; with ``--discard`` only end them.

    With ``--overwrite``, also over what the notebook has changed meanwhile.

    Raises:
        OptionError: no ranks are held, or ``rest`` has another option.
    """
    words = rest.split()
    if unknown := [word for word in words if word not in RELEASE_OPTIONS]:
        what = f"%mgpu release has no option {unknown[0]}"
        allowed = f"Options: {', '.join(RELEASE_OPTIONS)}"
        raise OptionError(format_message(what, allowed, "%mgpu release"))
    if len(words) > 1:
        what = "%mgpu release either overwrites the notebook's objects, or discards the ranks'"
        raise OptionError(format_message(what, instead=f"%mgpu release {words[0]}"))
    if api.release(discard="--discard" in words, overwrite="--overwrite" in words) is None:
        print("The ranks have ended; the notebook's models are as before the cell with --hold.")


def advise(rest: str) -> Advice:
    """Recommend a strategy for the model among the names in ``rest``, with the options there."""
    found, options, nodes = _parse_names_and_options(rest)
    advice = found.advisor().advise(AdviceRequest.from_options(options, **nodes))
    return dataclasses.replace(advice, notes=(f"Advice for {found.description}.", *advice.notes))


def pick(rest: str) -> Picker:
    """Show the strategy picker for the model among the names in ``rest``."""
    from nbmgpu.ui.picker import Picker

    found, options, nodes = _parse_names_and_options(rest)
    return Picker(PickerController(found.advisor(), found.description, options, **nodes))


def _parse_names_and_options(
    rest: str,
) -> tuple[TrainingObjects, RunOptions, dict[str, Any]]:
    """Parse names and the options after them, such as ``model loader --gpus 4 --link 25``."""
    words, nodes = split_node_options(rest.split())
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    options = RunOptions.parse(" ".join(words[first:]))
    names = [word.rstrip(",") for word in words[:first]]
    return find_training_objects(names, NotebookContext.current().namespace), options, nodes


def clean(rest: str) -> None:
    """Remove old or large runs, and say what all runs take on the disk."""
    print(clean_text(rest))


def debug(rest: str) -> None:
    """Open the debugger in the frames of a rank that raised an exception."""
    shell = NotebookContext.current().shell
    assert shell is not None  # which has called this magic
    debug_in(shell, rest)


def engine(rest: str) -> None:
    """List, add or remove engine profiles."""
    print(engine_text(rest))


def export(rest: str) -> None:
    """Write a run as a script, or as a page of HTML."""
    print(export_text(rest))


def info(rest: str) -> None:
    """Print devices, versions and missing packages; with ``--patches`` the table of patches.

    Raises:
        OptionError: ``rest`` has another option.
    """
    words = rest.split()
    if unknown := [word for word in words if word not in INFO_OPTIONS]:
        allowed = f"Options: {', '.join(INFO_OPTIONS)}"
        what = f"%mgpu info has no option {unknown[0]}"
        raise OptionError(format_message(what, allowed, "%mgpu info --patches"))
    print(patch_report() if words else info_text())
