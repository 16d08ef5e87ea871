"""Definite assignment analysis: which names are assigned on every path to a point in the code.

``ControlFlowVisitor`` visits a syntax tree in evaluation order.  A name is *assigned* at a point if
the code has bound or deleted it on every path to that point, so that its earlier value is no longer
visible.

An assigned name stays assigned, even when it is deleted.  The set therefore only grows along a
path and one pass is enough: what is assigned before a loop is assigned in each iteration, and what
is assigned before ``try`` is assigned in each handler.
"""

# ruff: noqa: D102 - a visitor's methods are named after the nodes they visit

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from .scopes import Scope

AssignedNames = frozenset[tuple[Scope, str]]
"""Assigned names, each with its scope."""

NEVER_SUPPRESS = frozenset({
    "autocast", "catch_warnings", "closing", "detect_anomaly", "device", "enable_grad",
    "inference_mode", "no_grad", "nullcontext", "open", "profile", "record_function",
    "redirect_stderr", "redirect_stdout", "set_grad_enabled", "tqdm", "trange",
    "NamedTemporaryFile", "Pool", "ProcessPoolExecutor", "TemporaryDirectory",
    "ThreadPoolExecutor",
})  # fmt: skip
"""Context managers that never suppress an exception, by the last part of their name.

After a ``with`` block of any other context manager, names that the block binds may be unbound,
because the block may have been left early.
"""

NAME_ERRORS = frozenset({"NameError", "Exception", "BaseException"})


def intersect_paths(paths: Iterable[AssignedNames | None]) -> AssignedNames | None:
    """Return the names that are assigned on all ``paths``; a path that ends earlier is None."""
    reachable = [path for path in paths if path is not None]
    return frozenset.intersection(*reachable) if reachable else None


class ControlFlowVisitor(ast.NodeVisitor):
    """Tracks assigned names along all paths; a subclass records what binds a name.

    Attributes:
        assigned: names that are assigned at the current point, or None if it is unreachable.
        guards: the number of enclosing blocks that handle a NameError.
    """

    def __init__(self) -> None:
        """Start with no name assigned."""
        self.assigned: AssignedNames | None = frozenset()
        self.guards = 0
        self._breaks: list[list[AssignedNames | None]] = []

    def visit(self, node: ast.AST) -> None:
        """Visit a node if it is reachable."""
        if self.assigned is not None:
            super().visit(node)

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _visit_optional(self, nodes: Iterable[ast.AST | None]) -> None:
        """Visit nodes that may not be evaluated, so they assign nothing for what follows."""
        before = self.assigned
        self._visit_all(nodes)
        self.assigned = before

    def _visit_path(
        self, start: AssignedNames | None, nodes: Iterable[ast.AST]
    ) -> AssignedNames | None:
        """Visit nodes as one of several paths; return the names assigned at its end."""
        self.assigned = start
        self._visit_all(nodes)
        return self.assigned

    def _visit_choice(
        self, test: ast.expr, body: Sequence[ast.AST], orelse: Sequence[ast.AST]
    ) -> None:
        self.visit(test)
        start, truth = self.assigned, constant_truth(test)
        paths = [
            self._visit_path(None if truth is False else start, body),
            self._visit_path(None if truth is True else start, orelse),
        ]
        self.assigned = intersect_paths(paths)

    def visit_If(self, node: ast.If) -> None:
        self._visit_choice(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit_choice(node.test, [node.body], [node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._visit_optional(node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> None:
        self._visit_all([node.left, node.comparators[0]])
        self._visit_optional(node.comparators[1:])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._visit_optional([node.msg])

    def _visit_path_end(self, node: ast.AST) -> None:
        self.generic_visit(node)
        self.assigned = None

    visit_Return = visit_Raise = visit_Continue = _visit_path_end

    def visit_Break(self, node: ast.Break) -> None:
        self._breaks[-1].append(self.assigned)
        self.assigned = None

    def _visit_loop(self, body: list[ast.stmt]) -> list[AssignedNames | None]:
        """Visit the body of a loop; return the names assigned at each ``break``."""
        self._breaks.append([])
        self._visit_all(body)
        return self._breaks.pop()

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        start = self.assigned
        self.visit(node.target)
        breaks = self._visit_loop(node.body)
        self.assigned = intersect_paths([self._visit_path(start, node.orelse), *breaks])

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        start, truth = self.assigned, constant_truth(node.test)
        self.assigned = None if truth is False else start
        breaks = self._visit_loop(node.body)
        self.assigned = intersect_paths(
            [self._visit_path(None if truth is True else start, node.orelse), *breaks]
        )

    def visit_Try(self, node: ast.Try) -> None:
        start = self.assigned
        with self._guarded(any(catches_name_error(handler.type) for handler in node.handlers)):
            self._visit_all(node.body)
        self._visit_all(node.orelse)
        paths = [self.assigned, *(self._visit_path(start, [handler]) for handler in node.handlers)]
        self.assigned = intersect_paths(paths)
        if node.finalbody:
            done = self.assigned
            final = self._visit_path(start, node.finalbody)
            self.assigned = None if done is None or final is None else done | final

    visit_TryStar: Callable[..., None] = visit_Try

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        # A manager that suppresses exceptions adds a path from any point in the block to its end.
        early: list[AssignedNames | None] = []
        survives = False
        for item in node.items:
            manager, target = item.context_expr, item.optional_vars
            self.visit(manager)
            if isinstance(target, ast.Name):  # binding a single name cannot fail; unpacking can
                self.visit(target)
            if trailing_name(manager) not in NEVER_SUPPRESS:
                early.append(self.assigned)
            self._visit_all([target])
            survives = survives or suppresses_name_error(manager)
        with self._guarded(survives):
            self._visit_all(node.body)
        self.assigned = intersect_paths([self.assigned, *early])

    visit_AsyncWith = visit_With

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        start, paths = self.assigned, []
        for case in node.cases:
            paths.append(self._visit_path(start, [case]))
        if not any(matches_all(case) for case in node.cases):
            paths.append(start)
        self.assigned = intersect_paths(paths)

    @contextmanager
    def _guarded(self, guarded: bool = True) -> Iterator[None]:
        self.guards += guarded
        yield
        self.guards -= guarded


def trailing_name(node: ast.expr | None) -> str:
    """Return ``c`` for ``c``, ``a.b.c`` and calls of these, else an empty string."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def catches_name_error(node: ast.expr | None) -> bool:
    """Return whether the expression after ``except`` includes NameError."""
    types = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(type_ is None or trailing_name(type_) in NAME_ERRORS for type_ in types)


def suppresses_name_error(manager: ast.expr) -> bool:
    """Return whether a context manager suppresses NameError, as ``contextlib.suppress`` can."""
    return (
        isinstance(manager, ast.Call)
        and trailing_name(manager) in ("suppress", "raises", "assertRaises")
        and any(catches_name_error(type_) for type_ in manager.args)
    )


def constant_truth(test: ast.expr) -> bool | None:
    """Return the truth value of a constant test such as ``while True``, else None."""
    return bool(test.value) if isinstance(test, ast.Constant) else None


def matches_all(case: ast.match_case) -> bool:
    """Return whether a case matches every value: ``case _`` or ``case name``."""
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None
