"""The short form of an exported script: the notebook's definitions, and a call of nbmgpu.run."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from nbmgpu.options.run_options import DEFAULTS

from .cell_code import read_cell_code
from .placement import Placement
from .request import ExportRequest
from .script import ScriptParts, data_folder, grouped, import_block, in_docstring
from .seeds import find_definitions
from .source_edits import indented
from .starting_states import StartingStates
from .statements import read_statements
from .training_objects import find_training_objects

NOT_EXPORTED = (
    "background", "detach", "dry_run", "export", "keep_start", "profile", "pull", "resume",
)  # fmt: skip
"""Options that belong to a notebook, or to one run."""


def nbmgpu_parts(request: ExportRequest, path: Path) -> ScriptParts:
    """Return the parts of a script that calls nbmgpu.

    Raises:
        CellError: the cell cannot be exported.
        SyntaxError: it is not valid Python.
    """
    cell = read_cell_code(request.cell, request.transform)
    statements = read_statements(request.cells, request.transform)
    found = find_definitions(request, statements, request.values, cell)
    names = [name for item in found.items for name in sorted(item.binds)]
    objects = find_training_objects(names, request.values, ast.parse(cell.code))
    parts = ScriptParts(path.name, Placement((), tuple(found.items), ()), dict(found.imports))
    parts.imports |= dict.fromkeys(cell.imports)
    parts.cell = cell.code
    StartingStates(request, found, objects, parts, sharded=False).add(cell.code)
    models = (*objects.models, *objects.made_models)
    parts.results = {f"{name}.pt": f"{name}.state_dict()" for name in models}
    return parts


def nbmgpu_script_text(request: ExportRequest, parts: ScriptParts) -> str:
    """Return the script."""
    pieces = [(item.order, item.text) for item in parts.placement.main]
    pieces += [(order, stored.code) for order, stored in parts.states]
    pieces += parts.wraps
    definitions = [text for _, text in sorted(pieces, key=lambda piece: piece[0])]
    saves = [f'torch.save({state}, "{file}")' for file, state in parts.results.items()]
    main = "\n".join([f"nbmgpu.run(CELL, globals(), {_options(request)})", *saves])
    body = "\n\n\n".join(grouped(definitions))
    quotes = "'''" if '"""' in parts.cell else '"""'
    cell = parts.cell.replace("\\", "\\\\").replace(quotes, "\\".join(["", *quotes]))
    imports = dict(parts.imports) | {"import nbmgpu": None, "import torch": None}
    data = ""
    if "DATA / " in body:
        imports["from pathlib import Path"] = None
        data = f'DATA = Path(__file__).with_name("{data_folder(parts.name)}")\n'
    block = import_block(imports, f"{data}{body}\n{main}\n{parts.cell}")
    origin = in_docstring(request.origin)
    head = f'"""Trains with nbmgpu.\n\n    python {parts.name}\n\nExported from {origin}.\n"""'
    start = 'if __name__ == "__main__":\n' + indented(main)
    text = f"CELL = {quotes}\n{cell}\n{quotes}"
    return f"{head}\n\n{block}\n\n{data}\n{body}\n\n\n{text}\n\n{start}\n"


def _options(request: ExportRequest) -> str:
    values = dataclasses.asdict(request.options)
    words = [f"strategy={request.options.strategy!r}", f"gpus={request.world_size}"]
    for name, value in values.items():
        if name not in (*NOT_EXPORTED, "strategy", "gpus") and value != DEFAULTS[name]:
            words.append(f"{name}={value!r}")
    if not request.on_gpu and not request.options.cpu:
        words.append("cpu=True")
    return ", ".join(words)
