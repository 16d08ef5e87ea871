"""The source of a cell, the Python that IPython transforms it into, and the map between lines."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

Transform = Callable[[str], str]

FILENAME = "<cell>"

LEADING_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")


def with_magic_line(magic: str, body: str) -> str:
    """Return a cell as the editor shows it: the magic's line, as a comment, above the body.

    IPython passes only the body to a cell magic, so its line 1 is the editor's line 2.  With the
    comment, every line number that is computed from the source is the editor's.

    A body that begins with another cell magic is returned as it is, because IPython recognizes a
    cell magic only in the first line; IPython numbers that magic's lines from its own body anyway.

    Args:
        magic: the first line of the cell, such as ``%%mgpu --gpus 2``.
        body: what IPython passes to the magic.
    """
    blank = LEADING_BLANK_LINES.match(body)
    code = body[blank.end() :] if blank else body
    if code.startswith("%%") or not code.strip():
        return body
    # IPython removes the indentation of the first line from all lines.
    indentation = code[: len(code) - len(code.lstrip(" \t"))]
    return f"{indentation}# {magic.strip()}\n{body}"


@dataclass(frozen=True)
class Fragment:
    """Transformed Python code of a cell, or of the argument of one magic.

    ``line_of`` maps a line number in ``code`` to the line number in the cell as written.  Both
    start at 1.
    """

    code: str
    tree: ast.Module
    needs_await: bool
    line_of: Callable[[int], int]


class CellSource:
    """A cell as written; parses it and the code in its magics."""

    def __init__(self, source: str, transform: Transform) -> None:
        """Store the source; ``transform`` turns magics into Python, as IPython does."""
        self.lines = source.split("\n")
        self._transform = transform

    def parse(self, text: str) -> Fragment:
        """Transform and parse the cell, or a part of it.

        Raises:
            SyntaxError: with line, offset and text of the cell as written.
        """
        code = self._transform(text)
        line_of = self._line_map(code)
        try:
            # Compiling detects more errors than parsing, such as ``return`` outside a function.
            compiled = compile(
                code, FILENAME, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
        except SyntaxError as error:
            raise self._relocate_error(error, code, line_of) from None
        except (ValueError, RecursionError, MemoryError) as error:
            # Characters that no encoding has, null bytes in some versions, deep nesting.
            raise SyntaxError(f"Python cannot compile the cell: {error}") from None
        needs_await = bool(compiled.co_flags & inspect.CO_COROUTINE)
        return Fragment(code, ast.parse(code), needs_await, line_of)

    def _line_map(self, code: str) -> Callable[[int], int]:
        # IPython removes leading blank lines, indentation and prompts, and joins continued lines.
        written, made = ([line.strip() for line in text] for text in (self.lines, code.split("\n")))
        lines = {}
        matcher = difflib.SequenceMatcher(lambda line: not line, written, made, autojunk=False)
        for _, start, end, first, last in matcher.get_opcodes():
            for number in range(first, last):
                lines[number + 1] = min(start + number - first, max(start, end - 1)) + 1
        return lambda line: min(lines.get(line, line), len(written))

    def _relocate_error(
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
            # zero or less: the end is unknown
            error.end_offset and error.end_offset + shift * (error.end_offset > 0),
        )
        message = re.sub(r"(?<=\bline )\d+", lambda found: str(line_of(int(found[0]))), error.msg)
        return type(error)(message, place)
