"""How ranks that are held after a run are handed to the next one: by files in the run folder.

Each rank writes ``held/rank-K`` when it has sent its results and waits.  When all have, the
launcher writes ``held/all`` and reports the end of the run.  The kernel then writes ``next``: the
folder of the run that goes on with these ranks, or nothing, which ends them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .folder import HELD_FOLDER, NEXT_FILE, write_atomically

ALL = "all"


def mark_held(folder: Path, rank: int) -> None:
    """Report that ``rank`` waits for the next run; call it once all else is written."""
    (folder / HELD_FOLDER).mkdir(exist_ok=True)
    (folder / HELD_FOLDER / f"rank-{rank}").touch()


def all_wait(folder: Path, world_size: int) -> bool:
    """Return whether all ranks wait for the next run."""
    with suppress(OSError):
        return len(os.listdir(folder / HELD_FOLDER)) >= world_size
    return False


def mark_all_held(folder: Path) -> None:
    """Report that the launcher waits for the next run, too."""
    (folder / HELD_FOLDER / ALL).touch()


def are_held(folder: Path) -> bool:
    """Return whether the ranks of the run were held at its end, and not handed on since.

    They may have ended, as the launcher of the run then has.
    """
    return (folder / HELD_FOLDER / ALL).exists() and not (folder / NEXT_FILE).exists()


def hand_on(folder: Path, following: Path | None) -> None:
    """Hand the ranks of the run in ``folder`` to that in ``following``; None ends them.

    Raises:
        OSError: the disk is full.
    """
    write_atomically(folder / NEXT_FILE, "" if following is None else str(following))


def following_run(folder: Path) -> Path | None:
    """Return the folder of the run that the ranks were handed to; None if there is none yet.

    It is that of the run itself where they are to end.
    """
    try:
        text = (folder / NEXT_FILE).read_text()
    except FileNotFoundError:
        return None if folder.exists() else folder
    return Path(text) if text else folder
