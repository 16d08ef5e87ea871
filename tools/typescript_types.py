"""Write the TypeScript types of what Python sends to the browser: labextension/src/generated/.

    python tools/typescript_types.py            write the files
    python tools/typescript_types.py --check    say which differ, and fail if any does

There is a file for each room of nbmgpu, with what ``ROOTS`` name there and what that is made of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from typescript import Declaration, Named, declare, named_literals

FOLDER = Path(__file__).parents[1] / "labextension" / "src" / "generated"

ROOTS = (
    "nbmgpu.runs.events:EVENT_TYPES",
    "nbmgpu.runs.record:RunRecord",
    "nbmgpu.report.snapshot:Parts",
    "nbmgpu.report.log_pages:LogRequest",
    "nbmgpu.report.log_pages:LogPage",
    "nbmgpu.report.curves:CurveRequest",
    "nbmgpu.server.payloads:*",
    "nbmgpu.advisor.picker_state:PickerState",
)
"""What the browser needs, as ``module:name``: a class, a dictionary of classes, or all (``*``)."""

HEAD = "// Made from Python by tools/typescript_types.py; a change here is lost."


def generate() -> dict[str, str]:
    """Return the text of every file by its name."""
    left = [Named.of(cls) for root in ROOTS for cls in classes_of(*root.split(":"))]
    ours = (m for name, m in sorted(sys.modules.items()) if name.partition(".")[0] == "nbmgpu")
    literals = named_literals(ours)
    done: dict[Named, Declaration] = {}
    while left:
        if (it := left.pop()) not in done:
            done[it] = declare(it, literals)
            left += done[it].mentions
    rooms = sorted({room_of(it) for it in done})
    return {
        f"{room}.ts": file_text(room, {it: d for it, d in done.items() if room_of(it) == room})
        for room in rooms
    }


def classes_of(module: str, name: str) -> Iterator[type]:
    """Yield the classes that ``name`` stands for."""
    home = import_module(module)
    if name == "*":
        yield from (
            c for c in vars(home).values() if isinstance(c, type) and c.__module__ == module
        )
    elif isinstance(found := getattr(home, name), dict):
        yield from found.values()
    else:
        yield found


def room_of(it: Named) -> str:
    """Return the file that something goes to: ``report`` for ``nbmgpu.report.log_pages``."""
    return it.module.split(".")[1]


def file_text(room: str, declarations: dict[Named, Declaration]) -> str:
    """Return one file: its imports, then its declarations, module by module, in their order."""
    foreign = {m for d in declarations.values() for m in d.mentions if room_of(m) != room}
    imports = []
    for other in sorted({room_of(it) for it in foreign}):
        names = ", ".join(sorted(it.name for it in foreign if room_of(it) == other))
        imports.append(f"import type {{ {names} }} from './{other}';")
    texts = [declarations[it].text for it in sorted(declarations, key=position)]
    return "\n\n".join(["\n".join([HEAD, *imports]), *texts]) + "\n"


def position(it: Named) -> tuple[str, int]:
    """Return where something stands: its module, and its place there."""
    return it.module, list(vars(import_module(it.module))).index(it.name)


def stale(texts: dict[str, str], folder: Path = FOLDER) -> list[str]:
    """Return the files of ``folder`` that are not as ``texts`` says, or should not be there."""
    there = {path.name: path.read_text() for path in folder.glob("*.ts")}
    return sorted(n for n in texts.keys() | there.keys() if texts.get(n) != there.get(n))


def main(check: bool) -> int:
    """Write what differs, or say so; return the exit status."""
    texts = generate()
    differing = stale(texts)
    for name in differing:
        path = FOLDER / name
        if check:
            print(f"{name} differs from Python. Type: python tools/typescript_types.py")
        elif name in texts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[name])
        else:
            path.unlink()
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
