"""Lets loops report their iterations: two calls are inserted into each loop of the user's code.

::

    enter_loop(3)                       # __nbmgpu_enter_loop__
    for x, y in loader:
        if skips_iteration(3):          # __nbmgpu_skips_iteration__
            continue
        ...

Lines and names stay as they are.  Loops of generators, whose bodies yield what other loops read,
are not changed.
"""

from __future__ import annotations

import ast
import builtins
import dis
import gc
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

from .loops import LoopSite, LoopStack

ENTER, SKIPS = "__nbmgpu_enter_loop__", "__nbmgpu_skips_iteration__"

Loop = TypeVar("Loop", ast.For, ast.While)


class LoopInstrumenter(ast.NodeTransformer):
    """Inserts the calls into a tree; IPython takes it as one of its ``ast_transformers``."""

    def __init__(self, loops: LoopStack, function: str = "", line: int = 1) -> None:
        """Register the loops of a tree in ``loops``.

        Args:
            loops: counts their iterations.
            function: qualified name of the function whose code it is; empty for a cell.
            line: the number of the tree's first line.
        """
        self._loops = loops
        self._function = function
        self._line = line
        self._outer: LoopSite | None = None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Change the loops of a function, unless it is a generator."""
        if is_generator(node):
            return node
        name = f"{self._function}.{node.name}" if self._function else node.name
        inner = LoopInstrumenter(self._loops, name, node.lineno)
        return inner.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Leave coroutines as they are."""
        return node

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """Change a ``for`` loop."""
        stored = {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        return self._instrument(node, frozenset(stored))

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """Change a ``while`` loop."""
        return self._instrument(node, frozenset())

    def _instrument(self, node: Loop, targets: frozenset[str]) -> list[ast.stmt]:
        is_while, outer = isinstance(node, ast.While), self._outer
        line = node.lineno - self._line + 1
        site = self._outer = LoopSite(self._function, line, is_while, targets, outer)
        number = self._loops.add(site)
        self.generic_visit(node)
        self._outer = outer
        call = f"{SKIPS}({number})"
        skips: list[ast.stmt] = ast.parse(call if is_while else f"if {call}: continue").body
        enter: list[ast.stmt] = ast.parse(f"{ENTER}({number})").body
        for added in (*skips, *enter):
            for each in ast.walk(added):
                ast.copy_location(each, node)
                if hasattr(each, "end_lineno"):
                    each.end_lineno = node.lineno  # the header alone
        node.body[:0] = skips
        return [*enter, node]


def is_generator(node: ast.FunctionDef) -> bool:
    """Return whether a function yields."""
    inner = [each for each in ast.walk(node) if isinstance(each, ast.Yield | ast.YieldFrom)]
    return bool(inner)


class Instrumentation:
    """Instruments cells and functions, and restores the functions before they leave the rank."""

    def __init__(
        self,
        loops: LoopStack,
        enter: Callable[[int], None],
        skips: Callable[[int], bool],
    ) -> None:
        """Let loops call ``enter`` before their first iteration and ``skips`` in each one."""
        self._loops = loops
        self._originals: dict[CodeType, CodeType] = {}
        vars(builtins)[ENTER], vars(builtins)[SKIPS] = enter, skips

    def transformer(self) -> LoopInstrumenter:
        """Return what instruments the cell."""
        return LoopInstrumenter(self._loops)

    def instrument_functions(self, namespace: dict[str, Any]) -> None:
        """Instrument all functions and methods of the notebook, whose globals are ``namespace``."""
        functions = [each for each in gc.get_objects() if type(each) is FunctionType]
        for function in (each for each in functions if each.__globals__ is namespace):
            code = function.__code__
            changed = self._changed(function)
            if changed is not None and changed.co_freevars == code.co_freevars:
                self._originals[changed] = code
                function.__code__ = changed

    def is_followed(self, code: CodeType) -> bool:
        """Return whether all loops in ``code`` report their iterations."""
        if code in self._originals or ENTER in code.co_names:
            return True
        return not any("JUMP_BACKWARD" in each.opname for each in dis.get_instructions(code))

    def restore_functions(self, cell: str) -> None:
        """Give all functions of the process their own code again.

        Args:
            cell: the cell as Python code, whose functions are among them.
        """
        changed = [
            each
            for each in gc.get_objects()
            if type(each) is FunctionType and ENTER in each.__code__.co_names
        ]
        if any(each.__code__ not in self._originals for each in changed):
            plain = {_key(code): code for code in _nested(_compile(cell))}
            for each in changed:
                if (code := plain.get(_key(each.__code__))) is not None:
                    self._originals.setdefault(each.__code__, code)
        for each in changed:
            original = self._originals.get(each.__code__)
            if original is not None and original.co_freevars == each.__code__.co_freevars:
                each.__code__ = original.replace(co_filename=each.__code__.co_filename)

    def _changed(self, function: FunctionType) -> CodeType | None:
        """Return the instrumented code of ``function``; None if its source is not available."""
        code = function.__code__
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return None
        node = tree.body[0] if tree.body else None
        if not isinstance(node, ast.FunctionDef) or is_generator(node):
            return None
        node.decorator_list = []
        ast.increment_lineno(tree, first - 1)
        LoopInstrumenter(self._loops, function.__qualname__, code.co_firstlineno).generic_visit(
            node
        )
        # Free variables of the function are local variables of one around it.
        outer = ast.parse("def around(): pass").body[0]
        assert isinstance(outer, ast.FunctionDef)
        free = [ast.parse(f"{name} = None").body[0] for name in code.co_freevars]
        outer.body = [*free, node]
        module = ast.fix_missing_locations(ast.Module([outer], []))
        found = _nested(compile(module, code.co_filename, "exec", dont_inherit=True))
        return next((each for each in found if each.co_name == code.co_name), None)


def _compile(cell: str) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(cell, "<cell>", "exec", flags, dont_inherit=True)
    return code


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _nested(*codes: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside of ``codes``."""
    for code in codes:
        inner: Iterable[CodeType] = (c for c in code.co_consts if isinstance(c, CodeType))
        for each in inner:
            yield each
            yield from _nested(each)
