"""The file in a run folder that asks the run to stop."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from .folder import STOP_FILE, write_atomically


def read_stop_request(folder: Path) -> Literal["", "stop", "force"]:
    """Return whether the run in ``folder`` was asked to stop, and how."""
    try:
        return "force" if (folder / STOP_FILE).read_text().strip() == "force" else "stop"
    except OSError:
        return ""


def request_stop(folder: Path, force: bool) -> bool:
    """Ask the run in ``folder`` to stop; return whether the request is there."""
    path = folder / STOP_FILE
    try:
        if force:
            write_atomically(path, "force")
            return True
        with suppress(FileExistsError), path.open("x") as file:
            file.write("stop")  # an empty file means the same
    except OSError:  # the disk is full
        return path.exists() and not force
    return True
