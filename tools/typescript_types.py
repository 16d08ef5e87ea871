"""Write TypeScript types of the data that Python sends to the browser: labextension/src/generated/.

    python tools/typescript_types.py            write the files
    python tools/typescript_types.py --check    print which files differ, and fail if any does

There is a file for each package of nbmgpu, with its types in ``ROOTS`` and the types that they use.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from typescript import Declaration, Named, declare, named_literals

from nbmgpu.report.views.base import PanelView
from nbmgpu.report.views.registry import BUILT_IN, RunViews

FOLDER = Path(__file__).parents[1] / "labextension" / "src" / "generated"

ROOTS = (
    "nbmgpu.runs.event_types:EVENT_TYPES",
    "nbmgpu.runs.record:RunRecord",
    "nbmgpu.report.node_rows:RankRequest",
    "nbmgpu.report.log_pages:LogRequest",
    "nbmgpu.report.log_pages:LogPage",
    "nbmgpu.report.curves:CurveRequest",
    "nbmgpu.report.metrics_csv:CsvRequest",
    "nbmgpu.report.metrics_csv:CsvPage",
    "nbmgpu.report.trace_parts:TraceRequest",
    "nbmgpu.report.trace_parts:TracePart",
    "nbmgpu.report.run_comparison.payload:RunComparison",
    "nbmgpu.server.payloads:*",
    "nbmgpu.advisor.picker_state:PickerState",
)
"""The types that the browser needs, as ``module:name``: a class, a dict of classes, or ``*``."""

HEAD = "// Generated from Python by tools/typescript_types.py. Do not edit."


def generate() -> dict[str, str]:
    """Return the text of each file by its name."""
    pending = [Named.of(cls) for root in ROOTS for cls in classes_of(*root.split(":"))]
    pending.append(Named.of(parts_type(BUILT_IN)))
    modules = (m for name, m in sorted(sys.modules.items()) if name.partition(".")[0] == "nbmgpu")
    literals = named_literals(modules)
    done: dict[Named, Declaration] = {}
    while pending:
        if (it := pending.pop()) not in done:
            done[it] = declare(it, literals)
            pending += done[it].used_types
    packages = sorted({package_of(it) for it in done})
    return {
        f"{package}.ts": file_text(
            package, {it: d for it, d in done.items() if package_of(it) == package}
        )
        for package in packages
    }


def classes_of(module: str, name: str) -> Iterator[type]:
    """Yield the classes that ``name`` refers to."""
    source = import_module(module)
    if name == "*":
        yield from (
            c for c in vars(source).values() if isinstance(c, type) and c.__module__ == module
        )
    elif isinstance(found := getattr(source, name), dict):
        yield from found.values()
    else:
        yield found


def parts_type(views: Mapping[str, type[PanelView]]) -> type:
    """Return a dataclass that has a field for the payload of each view."""
    payloads = {name: typing.get_type_hints(cls.payload)["return"] for name, cls in views.items()}
    parts = dataclasses.make_dataclass("Parts", payloads.items())
    parts.__module__ = RunViews.__module__
    parts.__doc__ = "Everything that is shown of a run: the payload of each built-in view."
    return parts


def package_of(it: Named) -> str:
    """Return the package of a type: ``report`` for ``nbmgpu.report.log_pages``."""
    return it.module.split(".")[1]


def file_text(package: str, declarations: dict[Named, Declaration]) -> str:
    """Return the text of a file: its imports, then its declarations in the order of the source."""
    foreign = {m for d in declarations.values() for m in d.used_types if package_of(m) != package}
    imports = []
    for other in sorted({package_of(it) for it in foreign}):
        names = ", ".join(sorted(it.name for it in foreign if package_of(it) == other))
        imports.append(f"import type {{ {names} }} from './{other}';")
    texts = [declarations[it].text for it in sorted(declarations, key=position)]
    return "\n\n".join(["\n".join([HEAD, *imports]), *texts]) + "\n"


def position(it: Named) -> tuple[str, int]:
    """Return the module of a type, and its index there."""
    names = list(vars(import_module(it.module)))
    return it.module, names.index(it.name) if it.name in names else len(names)


def stale(texts: dict[str, str], folder: Path = FOLDER) -> list[str]:
    """Return the files of ``folder`` that differ from ``texts``, or should not exist."""
    existing = {path.name: path.read_text() for path in folder.glob("*.ts")}
    return sorted(n for n in texts.keys() | existing.keys() if texts.get(n) != existing.get(n))


def main(check: bool) -> int:
    """Write the files that differ, or print their names; return the exit status."""
    texts = generate()
    differing = stale(texts)
    for name in differing:
        path = FOLDER / name
        if check:
            print(f"{name} differs from Python. Run: python tools/typescript_types.py")
        elif name in texts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[name])
        else:
            path.unlink()
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
