"""Python's scoping: which block a name belongs to.

The standard library's ``symtable`` knows it too, but its tables cannot be matched to the nodes
of a syntax tree, and it is the order of the nodes that ``nbmgpu.cell.name_analysis`` needs.
"""

# ruff: noqa: D102 - a visitor's methods are named after the nodes they visit

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(eq=False)
class Scope:
    """A block with variables of its own.  A ``type`` scope holds type parameters.

    ``deleted`` are locals that are unbound somewhere: in a class body, the global variable
    of that name shows through again.  ``owner`` is the class whose private names are meant.
    """

    kind: Literal["module", "class", "function", "comprehension", "type"]
    parent: Scope | None = None
    locals: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    owner: str = ""

    def mangled(self, name: str) -> str:
        """Return the name that Python uses for a private name in a class."""
        owner = self.owner.lstrip("_")
        private = name.startswith("__") and not name.endswith("__")
        return f"_{owner}{name}" if private and owner else name

    def home(self, name: str) -> Scope:
        """Return the scope that a name belongs to when it is used in this one."""
        scope, inside = self, True
        while scope.parent is not None:
            if inside or scope.kind != "class":  # functions do not see the class around them
                if name in scope.globals:
                    break
                if name in scope.locals:
                    return scope
            inside = inside and scope.kind == "type"
            scope = scope.parent
        while scope.parent is not None:
            scope = scope.parent
        return scope


class LocalNames(ast.NodeVisitor):
    """Finds the variables of a function or class body, without looking into inner ones."""

    def __init__(self, scope: Scope) -> None:
        """Fill in the names of ``scope``."""
        self.scope = scope
        self._nonlocal: set[str] = set()

    def read(self, nodes: Iterable[ast.AST]) -> Scope:
        """Add the variables of a body; return the scope."""
        for node in nodes:
            self.visit(node)
        self.scope.locals -= self._nonlocal
        return self.scope

    def _add(self, name: str | None) -> None:
        if name is not None:
            self.scope.locals.add(self.scope.mangled(name))

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._add(node.id)
        if isinstance(node.ctx, ast.Del):
            self.scope.deleted.add(self.scope.mangled(node.id))

    def visit_arg(self, node: ast.arg) -> None:
        self._add(node.arg)

    def visit_alias(self, node: ast.alias) -> None:
        self._add(imported_name(node))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._add(node.name)
        self.scope.deleted.update({self.scope.mangled(node.name)} if node.name else ())
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._add(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._add(node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.globals |= {self.scope.mangled(name) for name in node.names}

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._nonlocal |= {self.scope.mangled(name) for name in node.names}

    def _visit_inner(self, node: Any) -> None:
        # Of an inner block, only := outside its body can bind a variable here.
        if not isinstance(node, ast.Lambda):
            self._add(node.name)
        for part, value in ast.iter_fields(node):
            if part not in ("body", "args", "type_params"):
                self._visit_all(value)
        if not isinstance(node, ast.ClassDef):
            self._visit_all([*node.args.defaults, *node.args.kw_defaults])

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_inner

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._visit_all([node.iter, *node.ifs])  # the target is the comprehension's own

    def _visit_all(self, value: object) -> None:
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                self.visit(node)


def imported_name(node: ast.alias) -> str:
    """Return the variable that one part of an import statement binds."""
    return node.asname or node.name.partition(".")[0]


def all_args(args: ast.arguments) -> list[ast.arg]:
    """Return every parameter of a function."""
    stars = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *stars]
