"""Python's scoping rules: which scope a name is resolved to.

The standard library's ``symtable`` has this information too, but its tables cannot be matched to
the nodes of a syntax tree, and ``nbmgpu.cell.name_analysis`` depends on the order of the nodes.
"""

# ruff: noqa: D102 - a visitor's methods are named after the nodes they visit

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(eq=False)
class Scope:
    """A block with its own variables.

    Attributes:
        kind: the kind of block; a ``type`` scope holds type parameters.
        parent: the enclosing scope.
        locals: names that are bound in this scope.
        globals: names that are declared ``global``.
        deleted: locals that are unbound somewhere.  In a class body, the global variable of the
            same name is visible again after that.
        owner: the class by whose name private names are mangled.
    """

    kind: Literal["module", "class", "function", "comprehension", "type"]
    parent: Scope | None = None
    locals: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    owner: str = ""

    def mangled(self, name: str) -> str:
        """Return ``name`` after private name mangling."""
        owner = self.owner.lstrip("_")
        private = name.startswith("__") and not name.endswith("__")
        return f"_{owner}{name}" if private and owner else name

    def binding_scope(self, name: str) -> Scope:
        """Return the scope that a name used in this scope is resolved to."""
        scope, inside = self, True
        while scope.parent is not None:
            if inside or scope.kind != "class":  # functions do not see names of the enclosing class
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
    """Finds the variables of a function or class body, without entering nested scopes."""

    def __init__(self, scope: Scope) -> None:
        """Initialize the visitor, which adds names to ``scope``."""
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
        # In a nested block, only := outside its body can bind a variable of this scope.
        if not isinstance(node, ast.Lambda):
            self._add(node.name)
        for part, value in ast.iter_fields(node):
            if part not in ("body", "args", "type_params"):
                self._visit_all(value)
        if not isinstance(node, ast.ClassDef):
            self._visit_all([*node.args.defaults, *node.args.kw_defaults])

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_inner

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._visit_all([node.iter, *node.ifs])  # the target is local to the comprehension

    def _visit_all(self, value: object) -> None:
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                self.visit(node)


def imported_name(node: ast.alias) -> str:
    """Return the variable that one part of an import statement binds."""
    return node.asname or node.name.partition(".")[0]


def all_parameters(args: ast.arguments) -> list[ast.arg]:
    """Return every parameter of a function."""
    stars = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *stars]


def star_import_names(module: str) -> set[str] | None:
    """Return what ``from module import *`` binds, or None when the module cannot be imported."""
    try:
        content = vars(importlib.import_module(module))
    except (Exception, SystemExit):  # the cell will raise the same error when it runs
        return None
    return set(content.get("__all__", (name for name in content if not name.startswith("_"))))
