"""The options of ``%mgpu clean``: which runs to remove."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbmgpu.errors import OptionError

from .flag_table import Flag, FlagTable
from .parsing import format_flags, format_problems, parse_line, validate
from .values import InvalidValueError, Problem

SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
AGE = re.compile(r"(--older[ =]+\d+)\s*([mhdw]|minutes?|hours?|days?|weeks?)\b", re.IGNORECASE)
BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class CleanOptions:
    """The options of ``%mgpu clean``.

    Attributes:
        older: seconds since the start of a run, at least.
        larger: bytes of its folder, at least.
        keep_tagged: whether runs with tags stay.
        dry_run: whether nothing is removed, and the runs are listed.
    """

    older: str = ""
    larger: str = ""
    keep_tagged: bool = False
    dry_run: bool = False

    @classmethod
    def parse(cls, line: str) -> CleanOptions:
        """Return the options on a line.

        Raises:
            OptionError: the message lists every problem and ends with a line that works.
        """
        joined = AGE.sub(lambda found: found[1] + found[2][0], line)  # "7 days"
        given, problems = parse_line(joined, CLEAN, vars(cls()))
        values, more = validate(given, CLEAN)
        options = cls(**values)
        if problems or more:
            words = format_flags(vars(options), CLEAN.flags, vars(cls())) or ["--older", "7d"]
            line = " ".join([CLEAN.command, *words])
            raise OptionError(format_problems([*problems, *more.values()], line))
        return options

    @property
    def seconds(self) -> float:
        """The age in seconds; 0 for any."""
        return int(self.older[:-1]) * SECONDS[self.older[-1]] if self.older else 0.0

    @property
    def nbytes(self) -> int:
        """The size in bytes; 0 for any."""
        return int(self.larger[:-1]) * BYTES[self.larger[-1]] if self.larger else 0


def _validate_older(value: object) -> str:
    text = str(value).strip().lower()
    if re.fullmatch(r"\d{1,6}[mhdw]", text):
        return text
    near = f"{text}d" if text.isdecimal() else "7d"
    allowed = "An age is a number and a unit: 12h, 7d or 4w"
    raise InvalidValueError(Problem(f"{value!r} is not an age", allowed), near)


def _validate_larger(value: object) -> str:
    found = re.fullmatch(r"(\d{1,6})([KMGT])(I?B)?", str(value).strip().upper())
    if found:
        return found[1] + found[2]
    near = f"{value}M" if str(value).isdecimal() else "100M"
    allowed = "A size is a number and a unit: 500K, 100M or 2G"
    raise InvalidValueError(Problem(f"{value!r} is not a size", allowed), near)


CLEAN = FlagTable(
    "%mgpu clean",
    (
        Flag("--older", "older", "runs that were started at least this long ago", metavar="7d",
             validate=_validate_older, completions=lambda: ("1d", "7d", "4w")),
        Flag("--larger", "larger", "runs whose folders are at least this large", metavar="100M",
             validate=_validate_larger, completions=lambda: ("100M", "1G")),
        Flag("--keep-tagged", "keep_tagged", "runs with a tag stay"),
        Flag("--dry-run", "dry_run", "remove nothing; list what would be removed"),
    ),
)  # fmt: skip
"""The flags of ``%mgpu clean``."""
