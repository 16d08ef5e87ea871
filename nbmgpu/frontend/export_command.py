"""The words after ``%mgpu export`` and ``nbmgpu export``, and what they do."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from nbmgpu import api
from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.options.flags import RUN
from nbmgpu.options.parsing import format_problems, parse_line, validate
from nbmgpu.options.run_options import DEFAULTS

OWN_OPTIONS = ("--with-nbmgpu", "--report")
"""Options of ``%mgpu export``, besides those of ``%%mgpu`` that replace the run's."""

USAGE = "%mgpu export [RUN] train.py, or %mgpu export --report [RUN] [report.html]"

FILES = (".py", ".html", ".htm")


@dataclasses.dataclass(frozen=True)
class ExportCommand:
    """What to export.

    Attributes:
        run: the beginning of a run's id; empty for the newest.
        path: the file to write.
        with_nbmgpu, report: see ``nbmgpu.export``.
        options: what replaces options of the run, by field.
    """

    run: str
    path: str
    with_nbmgpu: bool
    report: bool
    options: dict[str, Any]


def parse(rest: str) -> ExportCommand:
    """Return what the words after ``export`` say.

    Raises:
        OptionError: they have no file, or an unknown or wrong option.
    """
    try:
        words = shlex.split(rest)
    except ValueError:
        raise OptionError(format_message("A quote is not closed", instead=USAGE)) from None
    own = [word for word in words if word in OWN_OPTIONS]
    words = [word for word in words if word not in OWN_OPTIONS]
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    names, flags = words[:first], words[first:]
    if flags and not names and flags[-1].endswith(FILES):  # --strategy fsdp train.py
        names.insert(0, flags.pop())
    if unknown := [w for w in flags if w.startswith("--") and _is_misspelt(w)]:
        near = closest_match(unknown[0], OWN_OPTIONS)
        what = f"%mgpu export has no option {unknown[0]}"
        raise OptionError(format_message(what, f"Options: {', '.join(OWN_OPTIONS)}", near or USAGE))
    if "--report" in own and len(names) < 2 and "." not in "".join(names):
        names.append(f"report-{names[0]}.html" if names else "report.html")
    if not 1 <= len(names) <= 2 or not names[-1].endswith(FILES) or "." in "".join(names[:-1]):
        what = "%mgpu export needs the name of one file that ends in .py or .html"
        raise OptionError(format_message(what, f"Given: {' '.join(names)}" if names else "", USAGE))
    given, problems = parse_line(shlex.join(flags), RUN, DEFAULTS)
    options, more = validate(given, RUN)
    if problems or more:
        raise OptionError(format_problems([*problems, *more.values()], USAGE))
    return ExportCommand(
        run=names[0] if len(names) == 2 else "",
        path=names[-1],
        with_nbmgpu="--with-nbmgpu" in own,
        report="--report" in own or not names[-1].endswith(".py"),
        options=options,
    )


def _is_misspelt(word: str) -> bool:
    name = word.partition("=")[0]
    return name not in RUN.by_name and closest_match(name, OWN_OPTIONS) is not None


def export_text(rest: str) -> str:
    """Export what the words after ``export`` say; return what was written, as text.

    Raises:
        OptionError, CellError, StrategyError: that is not possible.
    """
    command = parse(rest)
    written = api.export(
        command.run,
        command.path,
        with_nbmgpu=command.with_nbmgpu,
        report=command.report,
        **command.options,
    )
    return f"Wrote {written}." if command.report else str(written)
