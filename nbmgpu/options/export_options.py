"""The options of exports: the script that is written instead of a run, and what a run keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .values import InvalidValueError, Problem

SUGGESTION = "train.py"


@dataclass(frozen=True)
class ExportOptions:
    """The options of exports.

    Attributes:
        export: path of the script that is written, instead of a run; None to run the cell.
        keep_start: whether the run folder keeps what the cell starts from, for later exports.
    """

    export: str | None = None
    keep_start: bool = False


def validate_export(value: object) -> str | None:
    """Return the absolute path of a Python file, which need not exist, or None."""
    if value is None:
        return None
    path = Path(value).expanduser() if isinstance(value, str | os.PathLike) else Path()
    if path.suffix == ".py":
        return str(path.absolute())
    problem = Problem(f"--export writes a Python script, not {value!r}", "A name that ends in .py")
    raise InvalidValueError(problem, str(path.with_suffix(".py")) if path.name else SUGGESTION)
