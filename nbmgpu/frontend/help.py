"""The help text for ``--help`` on a ``%%mgpu`` or ``%mgpu`` line."""

from __future__ import annotations

from nbmgpu.comparison.request import TABLES
from nbmgpu.options.clean_options import CLEAN
from nbmgpu.options.commands import COMMANDS
from nbmgpu.options.flags import RUN


def usage(line: str) -> str:
    """Return the help text if ``line`` asks for help, else an empty string."""
    first, *rest = line.partition("#")[0].split() or [""]
    if first != "help" and not {"--help", "-h"} & {first, *rest}:
        return ""
    if first == "clean":
        return f"{CLEAN.command}. Options:\n{CLEAN.help_text()}"
    if first in TABLES:
        return f"{TABLES[first].command}, above a cell. Options:\n{TABLES[first].help_text()}"
    width = max(map(len, COMMANDS))
    commands = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    others = " and ".join(f"{table.command} --help" for table in TABLES.values())
    return "\n".join(
        [
            f"{RUN.command}, above a cell, runs it on several ranks. Options:",
            RUN.help_text(),
            f"{others} list the options of comparisons.",
            "",
            "%mgpu, on a line of its own. Commands:",
            *commands,
        ]
    )
