"""Files that an export may replace: those of an earlier export that nobody has edited."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from nbmgpu.errors import OptionError, format_message

CHECKSUM = "# Checksum of the lines above, as exported: "
"""Begins the last line of a script; an edited script is never replaced."""

GENERATOR = '<meta name="generator" content="nbmgpu">'
"""Stands in the head of a report, which nobody edits."""


def with_checksum(text: str) -> str:
    """Return ``text`` with a last line by which ``is_unedited_export`` knows it again."""
    return f"{text}\n{CHECKSUM}{_checksum(text)}\n"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_unedited_export(text: str) -> bool:
    """Return whether ``text`` is a script of ``with_checksum``, or a report."""
    above, _, checksum = text.rpartition(f"\n{CHECKSUM}")
    return GENERATOR in text or checksum.strip() == _checksum(above)


def check_replaceable(path: Path, files: Iterable[Path] = ()) -> None:
    """Check that nothing of the user's would be lost.

    Args:
        path: the script or report to be written.
        files: what is written beside it, and belongs to the script that is there.

    Raises:
        OptionError: ``path`` exists and is no unedited export, or one of ``files`` exists without.
        OSError: it cannot be read.
    """
    if path.exists():
        if not is_unedited_export(path.read_text(encoding="utf-8", errors="replace")):
            what = f"{path} exists, and is not what nbmgpu has exported: it would be lost"
            raise OptionError(format_message(what, instead=_instead(path)))
        return
    for file in files:
        if file.exists():
            what = f"{file} exists, and would be lost"
            raise OptionError(format_message(what, instead=_instead(path)))


def _instead(path: Path) -> str:
    return f"another name, such as {path.stem}_2{path.suffix}, or remove it first"
