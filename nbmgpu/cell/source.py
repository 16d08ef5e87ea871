"""A cell's text, the Python that IPython makes of it, and where a line of one is in the other."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

Transform = Callable[[str], str]

FILENAME = "<cell>"


@dataclass(frozen=True)
class Fragment:
    """Python of a cell: all of it, or what one magic runs.

    ``line_of`` maps a line of ``code`` to the line of the cell as written; both count from 1.
    """

    code: str
    tree: ast.Module
    needs_await: bool
    line_of: Callable[[int], int]


class CellSource:
    """A cell as written, with the way to make Python of it and of its parts."""

    def __init__(self, source: str, transform: Transform) -> None:
        """Keep the text; ``transform`` is IPython's, from magics to Python."""
        self.lines = source.split("\n")
        self._transform = transform

    def parse(self, text: str) -> Fragment:
        """Return the Python of the cell, or of a part of it.

        Raises:
            SyntaxError: with line, offset and text of the cell as written.
        """
        code = self._transform(text)
        line_of = self._line_map(code)
        try:
            # Compiling finds more errors than parsing, such as ``return`` outside a function.
            compiled = compile(
                code, FILENAME, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
        except SyntaxError as error:
            raise self._as_written(error, code, line_of) from None
        needs_await = bool(compiled.co_flags & inspect.CO_COROUTINE)
        return Fragment(code, ast.parse(code), needs_await, line_of)

    def _line_map(self, code: str) -> Callable[[int], int]:
        # IPython drops empty first lines, indentation and prompts, and joins continued lines.
        written, made = ([line.strip() for line in text] for text in (self.lines, code.split("\n")))
        lines = {}
        matcher = difflib.SequenceMatcher(lambda line: not line, written, made, autojunk=False)
        for _, start, end, first, last in matcher.get_opcodes():
            for number in range(first, last):
                lines[number + 1] = min(start + number - first, max(start, end - 1)) + 1
        return lambda line: min(lines.get(line, line), len(written))

    def _as_written(
        self, error: SyntaxError, code: str, line_of: Callable[[int], int]
    ) -> SyntaxError:
        number = error.lineno or 1
        made = (code.split("\n") + [""] * number)[number - 1]
        written = self.lines[line_of(number) - 1]
        text, shift = (written, len(written) - len(made)) if written.endswith(made) else (made, 0)
        place = (
            FILENAME,
            line_of(number),
            error.offset and error.offset + shift,
            text + "\n",
            error.end_lineno and line_of(error.end_lineno),
            # zero or less: Python does not know the end
            error.end_offset and error.end_offset + shift * (error.end_offset > 0),
        )
        message = re.sub(r"(?<=\bline )\d+", lambda found: str(line_of(int(found[0]))), error.msg)
        return type(error)(message, place)
