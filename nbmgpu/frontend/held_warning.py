"""Warns where a plain cell uses a model that ranks hold: the notebook has its earlier weights."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

OLD_VALUES = (
    "{names}: this cell sees what the notebook had before the cell with --hold. The ranks have "
    "gone on with their own; what this cell changes would be lost. %mgpu release brings theirs "
    "back."
)

CALLS = ("run_cell_magic('mgpu", "run_line_magic('mgpu'")
"""Parts of the code of cells that run in the ranks, or release them."""


def warn(info: Any) -> None:
    """Warn before a cell runs; called by IPython, with its source in ``info``."""
    held_ranks = sys.modules.get("nbmgpu.kernel.held_ranks")  # not imported before the first run
    if held_ranks is None or (held := held_ranks.waiting()) is None:
        return
    from nbmgpu.kernel.notebook_context import NotebookContext

    context = NotebookContext.current()
    code = info.raw_cell
    with suppress(Exception):  # the cell itself will raise it
        code = context.transform(code) if context.transform else code
        used = {*names_in(code, held.namespace)}
        names = [f"`{name}`" for name in held.held_names() if name in used]
        if names and not any(call in code for call in CALLS):
            print(OLD_VALUES.format(names=", ".join(names)), file=sys.stderr)


def names_in(code: str, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that ``code`` reads, and those that the functions among them read."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
            if isinstance(function := namespace.get(node.id), FunctionType):
                yield from function.__code__.co_names
