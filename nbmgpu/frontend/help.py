"""What ``--help`` on a line of ``%%mgpu`` or ``%mgpu`` shows."""

from __future__ import annotations

from nbmgpu.comparison.request import TABLES
from nbmgpu.options.flags import COMMANDS, RUN


def usage(line: str) -> str:
    """Return what a line that asks for help is to be shown; empty if it asks for none."""
    first, *rest = line.partition("#")[0].split() or [""]
    if first != "help" and not {"--help", "-h"} & {first, *rest}:
        return ""
    if first in TABLES:
        return f"{TABLES[first].command}, above a cell, takes\n{TABLES[first].help_text()}"
    width = max(map(len, COMMANDS))
    commands = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    others = " and ".join(f"{table.command} --help" for table in TABLES.values())
    return "\n".join(
        [
            f"{RUN.command}, above a cell, runs it on several ranks. It takes",
            RUN.help_text(),
            f"{others} show what comparisons take.",
            "",
            "%mgpu, on a line of its own, takes one of",
            *commands,
        ]
    )
