"""The ways through a piece of code, and what has happened on all of them.

``Flow`` walks a syntax tree in the order in which Python evaluates it.  At each point it knows
the names that are *settled*: on every way to that point the code has bound or deleted them, so
that the value they had before cannot be seen any more.

A settled name stays settled, even when it is deleted.  So the set only grows along any way
through the code, and one walk is enough: what holds before a loop holds in every turn of it,
and what holds before ``try`` holds in each handler.
"""

# ruff: noqa: D102 - a visitor's methods are named after the nodes they visit

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from .scopes import Scope

Settled = frozenset[tuple[Scope, str]]
"""Names that are settled, each with the scope it belongs to."""

NEVER_SUPPRESS = frozenset({
    "autocast", "catch_warnings", "closing", "detect_anomaly", "device", "enable_grad",
    "inference_mode", "no_grad", "nullcontext", "open", "profile", "record_function",
    "redirect_stderr", "redirect_stdout", "set_grad_enabled", "tqdm", "trange",
    "NamedTemporaryFile", "Pool", "ProcessPoolExecutor", "TemporaryDirectory",
    "ThreadPoolExecutor",
})  # fmt: skip
"""Context managers that let every exception pass, by the last part of their name.

After ``with`` any other one, what the block binds may be missing: it may have been left early.
"""

NAME_ERRORS = frozenset({"NameError", "Exception", "BaseException"})


def meet(ways: Iterable[Settled | None]) -> Settled | None:
    """Return what is settled where ways come together; None stands for a way that ends before."""
    open_ways = [way for way in ways if way is not None]
    return frozenset.intersection(*open_ways) if open_ways else None


class Flow(ast.NodeVisitor):
    """Follows the ways through the code; what binds a name is for a subclass to say.

    ``settled`` is what is settled at the present point, or None where nothing ever comes.
    ``guards`` counts the blocks around it that survive a NameError.
    """

    def __init__(self) -> None:
        """Start at the first line, with nothing settled."""
        self.settled: Settled | None = frozenset()
        self.guards = 0
        self._breaks: list[list[Settled | None]] = []

    def visit(self, node: ast.AST) -> None:
        """Visit a node, unless it is never reached."""
        if self.settled is not None:
            super().visit(node)

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _visit_perhaps(self, nodes: Iterable[ast.AST | None]) -> None:
        """Visit what may never run: it settles nothing for what follows."""
        before = self.settled
        self._visit_all(nodes)
        self.settled = before

    def _way(self, start: Settled | None, nodes: Iterable[ast.AST]) -> Settled | None:
        """Visit nodes as one of several ways; return what is settled at its end."""
        self.settled = start
        self._visit_all(nodes)
        return self.settled

    def _visit_choice(
        self, test: ast.expr, body: Sequence[ast.AST], orelse: Sequence[ast.AST]
    ) -> None:
        self.visit(test)
        start, truth = self.settled, constant_truth(test)
        ways = [
            self._way(None if truth is False else start, body),
            self._way(None if truth is True else start, orelse),
        ]
        self.settled = meet(ways)

    def visit_If(self, node: ast.If) -> None:
        self._visit_choice(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit_choice(node.test, [node.body], [node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._visit_perhaps(node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> None:
        self._visit_all([node.left, node.comparators[0]])
        self._visit_perhaps(node.comparators[1:])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._visit_perhaps([node.msg])

    def _visit_end_of_way(self, node: ast.AST) -> None:
        self.generic_visit(node)
        self.settled = None

    visit_Return = visit_Raise = visit_Continue = _visit_end_of_way

    def visit_Break(self, node: ast.Break) -> None:
        self._breaks[-1].append(self.settled)
        self.settled = None

    def _visit_loop(self, body: list[ast.stmt]) -> list[Settled | None]:
        """Visit the body of a loop; return the ways out of it through ``break``."""
        self._breaks.append([])
        self._visit_all(body)
        return self._breaks.pop()

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        start = self.settled
        self.visit(node.target)
        breaks = self._visit_loop(node.body)
        self.settled = meet([self._way(start, node.orelse), *breaks])

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        start, truth = self.settled, constant_truth(node.test)
        self.settled = None if truth is False else start
        breaks = self._visit_loop(node.body)
        self.settled = meet([self._way(None if truth is True else start, node.orelse), *breaks])

    def visit_Try(self, node: ast.Try) -> None:
        start = self.settled
        with self._guarded(any(names_error(handler.type) for handler in node.handlers)):
            self._visit_all(node.body)
        self._visit_all(node.orelse)
        ways = [self.settled, *(self._way(start, [handler]) for handler in node.handlers)]
        self.settled = meet(ways)
        if node.finalbody:
            done = self.settled
            final = self._way(start, node.finalbody)
            self.settled = None if done is None or final is None else done | final

    visit_TryStar: Callable[..., None] = visit_Try

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        # A manager that suppresses an exception leads from anywhere in the block to its end.
        early: list[Settled | None] = []
        survives = False
        for item in node.items:
            manager, target = item.context_expr, item.optional_vars
            self.visit(manager)
            if isinstance(target, ast.Name):  # bound at once; unpacking could fail
                self.visit(target)
            if last_name(manager) not in NEVER_SUPPRESS:
                early.append(self.settled)
            self._visit_all([target])
            survives = survives or suppresses_name_error(manager)
        with self._guarded(survives):
            self._visit_all(node.body)
        self.settled = meet([self.settled, *early])

    visit_AsyncWith = visit_With

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        start, ways = self.settled, []
        for case in node.cases:
            ways.append(self._way(start, [case]))
        if not any(matches_all(case) for case in node.cases):
            ways.append(start)
        self.settled = meet(ways)

    @contextmanager
    def _guarded(self, guarded: bool = True) -> Iterator[None]:
        self.guards += guarded
        yield
        self.guards -= guarded


def last_name(node: ast.expr | None) -> str:
    """Return ``c`` for ``c``, ``a.b.c`` and calls of them, else nothing."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def names_error(node: ast.expr | None) -> bool:
    """Tell whether what stands after ``except`` includes NameError."""
    types = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(type_ is None or last_name(type_) in NAME_ERRORS for type_ in types)


def suppresses_name_error(manager: ast.expr) -> bool:
    """Tell whether a manager expects a NameError, as ``contextlib.suppress`` may."""
    return (
        isinstance(manager, ast.Call)
        and last_name(manager) in ("suppress", "raises", "assertRaises")
        and any(names_error(type_) for type_ in manager.args)
    )


def constant_truth(test: ast.expr) -> bool | None:
    """Return the truth of a test that is written out, as in ``while True``, else None."""
    return bool(test.value) if isinstance(test, ast.Constant) else None


def matches_all(case: ast.match_case) -> bool:
    """Tell whether a case takes every value: ``case _`` or ``case name``."""
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None
