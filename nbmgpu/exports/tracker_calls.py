"""Experiment trackers in an exported script: rank 0 alone logs, as in the notebook."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .source_edits import SourceEdits
from .statements import last_name

SILENT = "SilentWriter"
"""The helper that stands for a writer on the other ranks."""

OTHERS = re.compile(r"\b(?:mlflow\.(?:log_\w+|start_run)|aim\.Run|comet_ml\.\w+)\(")
"""Calls of trackers that have no switch of their own for one process."""

EVERY_RANK = (
    "The line `{line}` logs on every rank: put the calls of this tracker under "
    "`if dist.get_rank() == 0:`."
)


def edit_trackers(edits: SourceEdits) -> set[str]:
    """Let rank 0 alone write for TensorBoard and to Weights & Biases; return the helpers in use."""
    used: set[str] = set()
    for node in ast.walk(edits.tree):
        if not isinstance(node, ast.Call):
            continue
        if last_name(node.func) == "SummaryWriter":
            # Arguments of its calls are computed on all ranks, which may have to meet for them.
            is_value = node in _whole_values(edits.tree)
            before, after = ("", "") if is_value else ("(", ")")
            edits.surround(node, before, f" if dist.get_rank() == 0 else {SILENT}(){after}")
            used.add(SILENT)
        elif ast.unparse(node.func) == "wandb.init" and "mode" not in _keywords(node):
            edits.append_argument(node, 'mode=None if dist.get_rank() == 0 else "disabled"')
    return used


def lines_on_every_rank(code: str) -> Iterator[str]:
    """Yield notes on trackers that the script leaves to every rank."""
    for line in code.split("\n"):
        if OTHERS.search(line):
            yield EVERY_RANK.format(line=line.strip())


def _whole_values(tree: ast.Module) -> list[ast.expr]:
    """Return the expressions that are all of what an assignment binds."""
    assignments = (n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AnnAssign))
    return [each.value for each in assignments if each.value is not None]


def _keywords(call: ast.Call) -> list[str | None]:
    return [keyword.arg for keyword in call.keywords]
