"""Assembles a script for ``torchrun`` from the notebook's definitions, the cell and a strategy."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .cell_code import CellCode
from .definitions import Item
from .helper_sources import HELPERS, IMPORTS
from .placement import Placement
from .refusals import DEEPSPEED
from .request import ExportRequest
from .source_edits import indented
from .strategy_calls import SUMMARIES
from .values import StoredValue

WIDTH = 88
"""Of lines, as formatters have it by default."""

START = """
if __name__ == "__main__":
    main()
    gc.collect()  # threads of gloo that live on may abort the exit
""".strip()
"""Of 63 runs of two ranks on a busy machine, 4 aborted without the last line, none with it."""


@dataclass
class ScriptParts:
    """What a script consists of.

    Attributes:
        name: of the file, for the command in its header.
        imports: import statements.
        placement: the notebook's definitions; ``texts`` has the source of those that are edited.
        texts: source by the order of an item.
        states: values that ``main`` loads after the definitions, or before it distributes models.
        wraps: statements of ``main`` that distribute models and loaders, each with the position
            among the definitions before which they come.
        cell: the edited source of the cell.
        results: expressions for the states to save, by the name of the file.
        helpers: the names of the helpers in use.
        notes: what differs from the notebook, as sentences.
        decorator: of ``main``, or an empty string.
    """

    name: str
    placement: Placement
    imports: dict[str, None] = field(default_factory=dict)
    texts: dict[float, str] = field(default_factory=dict)
    states: list[tuple[float, StoredValue]] = field(default_factory=list)
    wraps: list[tuple[float, str]] = field(default_factory=list)
    cell: str = ""
    results: dict[str, str] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    decorator: str = ""


def script_text(request: ExportRequest, parts: ScriptParts) -> str:
    """Return the script."""
    top = [parts.texts.get(item.order, item.text) for item in parts.placement.top]
    helpers = [source.strip() for name, source in HELPERS.items() if name in parts.helpers]
    main = _main(request, parts)
    body = "\n\n\n".join([*grouped(top), *helpers, main])
    needs_data = "DATA / " in body
    data = f'DATA = Path(__file__).with_name("{data_folder(parts.name)}")\n\n' if needs_data else ""
    imports = _imports(parts, f"{data}{body}\n\n\n{START}")
    return f"{_header(request, parts)}\n\n{imports}\n\n{data}\n{body}\n\n\n{START}\n"


def data_folder(script: str) -> str:
    """Return the name of the folder beside ``train.py``: ``train_data``."""
    return f"{script.removesuffix('.py')}_data"


def torchrun_command(request: ExportRequest, name: str) -> str:
    """Return the command that runs the script."""
    nodes = f"--nnodes {request.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
    each = request.world_size // request.nodes
    on_cpu = request.options.strategy in DEEPSPEED and not request.on_gpu
    accelerator = "DS_ACCELERATOR=cpu " if on_cpu else ""  # else it takes a GPU that it finds
    return (
        f"{accelerator}torchrun {nodes if request.nodes > 1 else ''}--nproc-per-node {each} {name}"
    )


def in_docstring(text: str) -> str:
    """Return a text of the notebook so that it cannot end a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _header(request: ExportRequest, parts: ScriptParts) -> str:
    summary = SUMMARIES[request.options.strategy]
    origin = in_docstring(request.origin)
    first = f"Trains on {request.world_size} processes with {summary}."
    notes = [
        textwrap.fill(in_docstring(note), WIDTH, initial_indent="- ", subsequent_indent="  ")
        for note in parts.notes
    ]
    lines = [
        f'"""{first}',
        "",
        f"    {torchrun_command(request, parts.name)}",
        "",
        f"Exported from {origin}.",
        *(
            ["", "Where the numbers may differ from those of the notebook:", "", *notes]
            if notes
            else []
        ),
        '"""',
    ]
    return "\n".join(lines)


def _main(request: ExportRequest, parts: ScriptParts) -> str:
    lines: list[str] = []
    if parts.placement.shared:
        lines.append(f"global {', '.join(parts.placement.shared)}")
    if request.on_gpu:
        lines.append('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))')
        lines.append('dist.init_process_group("cpu:gloo,cuda:nccl")')
    else:
        lines.append('dist.init_process_group("gloo")')
    pieces: list[tuple[float, str]] = [
        (item.order, parts.texts.get(item.order, item.text)) for item in parts.placement.main
    ]
    pieces += [(order, stored.code) for order, stored in parts.states]
    pieces += parts.wraps
    in_order = [text for _, text in sorted(pieces, key=lambda piece: piece[0])]
    blocks = ["\n".join(lines), *_blocks(in_order), parts.cell]
    saves = [f'save_once({state}, "{file}")' for file, state in parts.results.items()]
    # Without the barrier, a process may end while a thread of gloo still holds a tensor, and abort.
    saves += ["dist.barrier()  # until rank 0 has saved"] if saves else ["dist.barrier()"]
    blocks += ["\n".join(saves), "dist.destroy_process_group()"]
    decorator = f"{parts.decorator}\n" if parts.decorator else ""
    return f"{decorator}def main():\n" + indented("\n\n".join(blocks))


def _blocks(statements: Sequence[str]) -> list[str]:
    """Join statements of one line, and set others apart by blank lines."""
    blocks: list[list[str]] = [[]]
    for text in statements:
        if text.lstrip().startswith(("def ", "class ", "@")):
            blocks += [[text], []]
        else:
            blocks[-1].append(text)
    return ["\n".join(block) for block in blocks if block]


def grouped(statements: Sequence[str]) -> list[str]:
    """Join constants that follow each other; functions and classes are set apart."""
    groups: list[str] = []
    follows = False
    for text in statements:
        is_definition = bool(re.search(r"^(?:async def|def|class|@)\W?", text, re.MULTILINE))
        if follows and not is_definition:
            groups[-1] += f"\n{text}"
        else:
            groups.append(text)
        follows = not is_definition
    return groups


def _imports(parts: ScriptParts, body: str) -> str:
    wanted = dict(parts.imports)
    wanted |= dict.fromkeys(IMPORTS[name] for name in IMPORTS if name in parts.helpers)
    always = ("import gc", "import os", "import torch", "import torch.distributed as dist")
    wanted |= dict.fromkeys([*always, "from pathlib import Path"])
    return import_block(wanted, body)


def import_block(statements: Iterable[str], body: str) -> str:
    """Return sorted import statements of what ``body`` uses, joined by module."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    modules: dict[str, dict[str, None]] = {}
    plain: dict[str, None] = {}
    for statement in dict.fromkeys(statements):
        node = ast.parse(statement).body[0]
        assert isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) not in used:
                continue
            if isinstance(node, ast.Import):
                plain[ast.unparse(ast.Import([alias]))] = None
            else:
                source = "." * node.level + (node.module or "")
                modules.setdefault(source, {})[ast.unparse(alias)] = None
    lines = [*plain]
    for source, names in modules.items():
        line = f"from {source} import {', '.join(sorted(names))}"
        if len(line) > WIDTH:
            line = f"from {source} import (\n    " + ",\n    ".join(sorted(names)) + ",\n)"
        lines.append(line)
    standard = [line for line in lines if _is_standard(line)]
    others = [line for line in lines if line not in standard]
    groups = [sorted(group, key=_import_order) for group in (standard, others)]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _is_standard(line: str) -> bool:
    return line.split()[1].partition(".")[0] in sys.stdlib_module_names


def _import_order(line: str) -> tuple[bool, str]:
    """Order ``import`` before ``from``, each by the name of the module."""
    return line.startswith("from"), line.split()[1]


def cell_comment(code: CellCode) -> list[str]:
    """Return what to tell about the magics that the script leaves out."""
    return [f"The magic `{magic}` of the cell is left out." for magic in code.left_out]


def files_of(parts: ScriptParts) -> dict[str, StoredValue]:
    """Return the files that the script loads, by name."""
    items: list[Item] = [*parts.placement.top, *parts.placement.main]
    stored = [item.stored for item in items if item.stored]
    stored += [state for _, state in parts.states]
    return {value.file: value for value in stored if value.file}
