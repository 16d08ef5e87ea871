"""The folders of a run that TensorBoard reads, and the command that starts it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

FOLDERS = 3
"""The most folders that are shown."""


def shown_folders(folders: Sequence[str]) -> dict[int, str]:
    """Return the first folders that are in no other one of ``folders``, by their places in it.

    TensorBoard shows the folders in a folder as well: ``add_hparams`` makes one for each call.
    """
    outer = {
        place: folder
        for place, folder in enumerate(folders)
        if not any(folder.startswith(other.rstrip("/") + "/") for other in folders)
    }
    return dict(list(outer.items())[:FOLDERS])


def tensorboard_command(folder: str) -> str:
    """Return what to type in a terminal."""
    return f"tensorboard --logdir {shlex.quote(folder)}"
