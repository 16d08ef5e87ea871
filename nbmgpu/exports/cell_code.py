"""The cell of an exported script: its Python without magics, and the imports in it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbmgpu.errors import CellError, format_message

from .source_edits import SourceEdits
from .statements import magic_body, names_bound, names_read

DYNAMIC = ("exec", "eval", "globals", "locals", "vars")

MAGIC_INSIDE = "A script has no magics, and the cell has one inside of a block"
AWAITS = "The cell awaits outside of a function, and a script has no event loop"
STAR = "The cell has a star import, which Python does not allow in a function"


@dataclass(frozen=True)
class CellCode:
    """A cell as it is put into a script.

    Attributes:
        code: its source, without magics and imports at the top level.
        imports: import statements that it had at the top level, of one name each.
        left_out: the magics and shell lines that it had.
        reads: the names that it may read before it binds or imports them.
        binds: the names that it may bind, besides those that it imports.
    """

    code: str
    imports: tuple[str, ...]
    left_out: tuple[str, ...]
    reads: tuple[str, ...]
    binds: frozenset[str]

    @property
    def own(self) -> frozenset[str]:
        """The names that need not exist before it."""
        return self.binds | names_bound("\n".join(self.imports))


def read_cell_code(source: str, transform: Callable[[str], str]) -> CellCode:
    """Return a cell as it is put into a script.

    Raises:
        CellError: it has what only a notebook can do.
        SyntaxError: it is not valid Python.
    """
    lines = source.split("\n")
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith("# %%mgpu")):
        del lines[0]
    code = transform("\n".join(lines))
    edits = SourceEdits(code)
    while len(edits.tree.body) == 1 and (body := magic_body(edits.tree.body[0])):
        code = transform(body)
        edits = SourceEdits(code)
    imports: list[str] = []
    left_out: list[str] = []
    for node in edits.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += _single_imports(node)
            edits.replace(node, "")
        elif _is_magic(node):
            left_out.append(_magic_line(node))
            edits.replace(node, "")
    result = edits.result().strip("\n")
    _check(ast.parse(result))
    imported = names_bound("\n".join(imports))
    reads = tuple(name for name in _needed(result) if name not in imported)
    return CellCode(result, tuple(imports), tuple(left_out), reads, names_bound(result))


def imported_values(imports: Sequence[str]) -> dict[str, Any]:
    """Return what import statements of one name each bind, without those that fail."""
    values: dict[str, Any] = {}
    for statement in imports:
        with suppress(Exception):  # of user code, which the cell will raise as well
            exec(statement, values)
    values.pop("__builtins__", None)
    return values


def _single_imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [ast.unparse(ast.Import([alias])) for alias in node.names]
    if node.names[0].name == "*":
        raise CellError(format_message(STAR, instead="from module import name"))
    if node.module == "__future__":
        return []
    return [ast.unparse(ast.ImportFrom(node.module, [a], node.level)) for a in node.names]


def _is_magic(node: ast.stmt) -> bool:
    """Return whether a statement is a magic or a shell line on its own."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value.value if isinstance(node.value, ast.Await) else node.value
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("get_ipython().")


def _magic_line(node: ast.stmt) -> str:
    """Return the first line of a magic as it is typed."""
    call = next(n for n in ast.walk(node) if isinstance(n, ast.Call) and n.args)
    words = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    kind = ast.unparse(call.func).rpartition(".")[2]
    sign = {"run_line_magic": "%", "run_cell_magic": "%%"}.get(kind, "!")
    return (sign + " ".join(words[:2])).strip()


def _needed(code: str) -> Iterator[str]:
    """Yield the names that code reads, except in lines below those that bind them.

    After a loop that binds a name, its value from before is needed only if the loop had no steps.
    """
    bound: dict[str, int] = {}
    for node in ast.parse(code).body:
        for each in ast.walk(node):
            targets: list[ast.expr] = []
            if isinstance(each, ast.For):
                targets, line = [each.target], each.lineno
            elif isinstance(each, ast.Assign):
                targets, line = each.targets, each.end_lineno or each.lineno
            for target in (part for one in targets for part in ast.walk(one)):
                if isinstance(target, ast.Name):
                    bound[target.id] = min(line, bound.get(target.id, line))
    for name, (line, _) in names_read(code).items():
        if line <= bound.get(name, line):
            yield name


def _check(tree: ast.Module) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inner = {id(n) for f in ast.walk(tree) if isinstance(f, functions) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Await) and id(node) not in inner:
            raise CellError(format_message(AWAITS, instead="asyncio.run(...)"))
        if isinstance(node, ast.Name) and node.id == "get_ipython":
            instead = "put it on a line of its own, outside of loops, which the script leaves out"
            raise CellError(format_message(MAGIC_INSIDE, instead=instead))
        match node:
            case ast.Call(func=ast.Name(id=name), args=given):
                if name in DYNAMIC and not (name == "vars" and given):
                    what = f"The cell calls {name}(), so what it needs is not known"
                    raise CellError(format_message(what, instead="read the names themselves"))
