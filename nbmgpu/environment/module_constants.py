"""Finds which variables of a module get the same value in every process, from its source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

CONSTRUCTORS = {
    "bool", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple",
    "Namespace", "SimpleNamespace", "argparse.Namespace", "types.SimpleNamespace",
}  # fmt: skip
"""Functions that return the same for the same arguments, as modules call them."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ModuleVariables:
    """The variables of a module, or the attributes of a class in it (``Config.lr``).

    Attributes:
        assigned: those that the module's own code assigns, outside of functions.
        constant: those of them that have the same value in every process.
        imported: those that come from another module: its name, and the variable's name there.
        stored_by_functions: those that functions declare as global.
    """

    assigned: frozenset[str]
    constant: frozenset[str]
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    stored_by_functions: frozenset[str] = frozenset()


def read_variables(source: str) -> ModuleVariables:
    """Return the variables of a module with this ``source``; none if it is not valid."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ModuleVariables(frozenset(), frozenset())
    reader = _Reader()
    reader.read(tree.body, "")
    stored = {
        name
        for function in ast.walk(tree)
        if isinstance(function, FUNCTIONS)
        for node in ast.walk(function)
        if isinstance(node, ast.Global)
        for name in node.names
    }
    constant = {name for name, found in reader.bindings.items() if all(found)}
    return ModuleVariables(
        frozenset(reader.bindings), frozenset(constant), reader.imported, frozenset(stored)
    )


class _Reader:
    """Reads the statements of a module in their order."""

    def __init__(self) -> None:
        self.bindings: dict[str, list[bool]] = defaultdict(list)
        self.imported: dict[str, tuple[str, str]] = {}

    def read(self, statements: list[ast.stmt], prefix: str) -> None:
        """Read the body of a module, or of a class whose attributes begin with ``prefix``."""
        for statement in statements:
            if isinstance(statement, ast.ClassDef):
                self.bindings[prefix + statement.name].append(True)
                self.read(statement.body, f"{prefix}{statement.name}.")
            elif isinstance(statement, ast.ImportFrom) and not prefix:
                source = "." * statement.level + (statement.module or "")
                for alias in statement.names:
                    self.imported[alias.asname or alias.name] = source, alias.name
            elif isinstance(statement, FUNCTIONS):
                self.bindings[prefix + statement.name].append(False)
            else:
                self._read_assignments(statement, prefix)

    def _read_assignments(self, statement: ast.stmt, prefix: str) -> None:
        value = getattr(statement, "value", None)
        is_plain = isinstance(statement, ast.Assign | ast.AnnAssign)
        is_constant = is_plain and value is not None and self._is_constant(value, prefix)
        for name in _stored_names(statement):
            self.bindings[prefix + name].append(is_constant)

    def _is_constant(self, value: ast.expr, prefix: str) -> bool:
        """Return whether an expression has the same value in every process."""
        if isinstance(value, ast.Name):
            found = self.bindings.get(prefix + value.id) or self.bindings.get(value.id)
            return bool(found) and all(found or ())
        if isinstance(value, ast.Call):
            called = ast.unparse(value.func)
            known = called in CONSTRUCTORS or (
                called in self.bindings and all(self.bindings[called])
            )
            arguments = [*value.args, *(keyword.value for keyword in value.keywords)]
            return known and all(self._is_constant(each, prefix) for each in arguments)
        if isinstance(value, ast.Constant):
            return True
        if isinstance(value, ast.BinOp | ast.UnaryOp | ast.List | ast.Tuple | ast.Set | ast.Dict):
            parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
            return all(self._is_constant(each, prefix) for each in parts)
        return False


def _stored_names(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds, but not those of functions and classes in it."""
    if isinstance(statement, FUNCTIONS | ast.ClassDef | ast.Lambda):
        return
    if isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        yield statement.id
    for part in ast.iter_child_nodes(statement):
        yield from _stored_names(part)
