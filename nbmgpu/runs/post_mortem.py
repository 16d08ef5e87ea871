"""What a rank held when it raised an exception: the frames of its traceback and their variables.

A rank writes it into the run folder, and ``%mgpu debug`` opens it in the notebook.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from nbmgpu.errors import OptionError, format_message
from nbmgpu.system.ownership import require_own

from .folder import post_mortem_path
from .run import Run


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback.

    Attributes:
        file: the name of the source file, or the one that IPython has given to a cell.
        function: its name, ``<module>`` for the cell itself.
        module: the name of the module of its globals.
        line: the line that it was in, from 1.
        variables: its local variables, each pickled by itself.
    """

    file: str
    function: str
    module: str
    line: int
    variables: dict[str, bytes]

    def values(self) -> dict[str, Any]:
        """Return the variables; one whose class is not found here is a ``NotSaved``."""
        return {name: _load(data) for name, data in self.variables.items()}


@dataclass(frozen=True)
class PostMortem:
    """The frames of an exception, from the cell to where it was raised.

    Attributes:
        frames: the outermost first.
        sources: text of the files that need not exist elsewhere, such as the cell, by name.
    """

    frames: tuple[Frame, ...]
    sources: dict[str, str]


@dataclass(frozen=True)
class NotSaved:
    """Stands for a value that could not be saved, or was too large.

    Attributes:
        description: what it was.
    """

    description: str

    def __repr__(self) -> str:
        """Say what it was."""
        return f"<not saved: {self.description}>"


def saved_ranks(run: Run) -> list[int]:
    """Return the ranks of ``run`` that have saved their frames."""
    ranks = range(run.record.world_size)
    return [rank for rank in ranks if post_mortem_path(run.folder, rank).exists()]


def load_post_mortem(run: Run, rank: int | None = None) -> tuple[int, PostMortem]:
    """Return a rank and its frames; without ``rank``, of the one whose exception is shown.

    Raises:
        OptionError: the run has none, of this rank.
        OwnershipError: another user may have written it.
    """
    run.refresh()
    saved = saved_ranks(run)
    if rank is None:
        failure = run.view.failure
        shown = failure.rank if failure is not None else 0
        rank = shown if shown in saved else min(saved, default=0)
    if rank not in saved:
        who = f"rank {rank} of run {run.id}" if saved else f"run {run.id}, which is {run.state}"
        what = f"There are no variables of {who}"
        allowed = f"Ranks that raised an exception: {', '.join(map(str, saved)) or 'none'}"
        instead = f"%mgpu debug {run.id} --rank {saved[0]}" if saved else "%mgpu runs"
        raise OptionError(format_message(what, allowed, instead))
    path = post_mortem_path(run.folder, rank)
    require_own(path)
    found = pickle.loads(path.read_bytes())
    assert isinstance(found, PostMortem)
    return rank, found


def _load(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except (
        Exception,
        SystemExit,
    ) as error:  # the others can be shown
        return NotSaved(f"cannot be read here: {error!r}")
