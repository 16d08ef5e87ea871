"""The patch table as text, with what the installed libraries have of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from . import lookup
from .table import TABLE
from .target import PatchTarget

LEGEND = (
    "Functions and classes of other libraries that nbmgpu replaces (patched), attributes that it\n"
    "adds to them (added), and private names that it uses (private)."
)


def patch_report() -> str:
    """Return the patch table, compared with the installed libraries in another process.

    The libraries must be imported for that, which the kernel does not need.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-m", "nbmgpu.patches"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"The libraries could not be checked:\n{done.stderr.strip()[-2000:]}"
    return done.stdout[done.stdout.index(LEGEND) :].rstrip()


def table_text(entries: Iterable[PatchTarget] | None = None) -> str:
    """Return a section for each library; imports the libraries."""
    by_library: dict[str, list[PatchTarget]] = {}
    for entry in TABLE.values() if entries is None else entries:
        by_library.setdefault(entry.library.name or "python", []).append(entry)
    return "\n\n".join([LEGEND, *(_section(name, rows) for name, rows in by_library.items())])


def _section(name: str, entries: list[PatchTarget]) -> str:
    """Return a library's versions, and two lines for each group of names with one reason."""
    library = entries[0].library
    here = f"installed: {library.installed}" if library.installed else "not installed"
    tested = library.tested.removeprefix(name).strip()
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for entry in entries:
        found = lookup.check(entry)
        why = entry.why
        if found.state == "missing":
            why += f" Without it, {entry.consequence}."
        groups.setdefault((found.state, entry.kind.value, entry.owner, why), []).append(entry.name)
    lines = [
        f"  {state:<8} {kind:<8} {owner}: {', '.join(names)}\n{'':20}{why}"
        for (state, kind, owner, why), names in groups.items()
    ]
    return "\n".join([f"{name}  tested with: {tested}  {here}", *lines])
