"""Checks who may have written a file, before it is unpickled: a pickle runs code.

A file is one's own if it belongs to this user or to root, and nobody else can write to it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nbmgpu.errors import OwnershipError, format_message

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ENTERED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH

REASON = "Reading it may run any code, so only what you have written yourself is read"


def require_own(place: str | Path, fd: int | None = None) -> None:
    """Raise an error unless ``place`` is one's own.

    Args:
        place: a file or a folder; of a symbolic link, what it leads to.
        fd: the file descriptor of the file, if it is open.  Another one cannot take its place.

    Raises:
        OwnershipError: another user may have written it.
        OSError: it does not exist.
    """
    found = os.stat(place if fd is None else fd)
    if found.st_uid not in (os.geteuid(), 0):
        what = f"{place} belongs to another user, with the id {found.st_uid}"
        instead = "a checkpoint or run of your own; if you trust theirs, copy it: cp -r"
        raise OwnershipError(format_message(what, REASON, instead))
    if found.st_mode & WRITABLE_BY_OTHERS and not _is_in_closed_folder(Path(place)):
        what = f"Other users may write to {place}"
        instead = f"chmod -R go-w '{place}', if you know that they have not"
        raise OwnershipError(format_message(what, REASON, instead))


def require_own_folder(folder: Path) -> None:
    """Raise an error unless ``folder`` and all that is in it are one's own.

    Raises:
        OwnershipError: another user may have written one of them.
        OSError: the folder does not exist.
    """
    require_own(folder)
    for path in folder.rglob("*"):
        require_own(path)


def _is_in_closed_folder(path: Path) -> bool:
    """Return whether no other user can reach a file, which its mode lets them write to.

    That is how files are where the umask is 002: a run folder is closed, whatever is in it.
    """
    return any(
        folder.st_uid == os.geteuid() and not folder.st_mode & ENTERED_BY_OTHERS
        for folder in map(os.stat, path.resolve().parents)
    )
