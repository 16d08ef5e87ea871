"""Edits of Python source that leave all the rest of it as it was written."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass, field


@dataclass
class SourceEdits:
    """Edits of one piece of source, by nodes of its syntax tree.

    Attributes:
        code: the source.
        tree: its syntax tree.
    """

    code: str
    tree: ast.Module = field(init=False)
    _edits: list[tuple[int, int, bool, str]] = field(init=False, default_factory=list)
    _starts: list[int] = field(init=False, default_factory=list)
    _lines: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Parse the source."""
        self.tree = ast.parse(self.code)
        self._lines = self.code.split("\n")
        position = 0
        for line in self._lines:
            self._starts.append(position)
            position += len(line) + 1

    def source(self, node: ast.expr) -> str:
        """Return the source of an expression."""
        start, end = self._span(node)
        return self.code[start:end]

    def replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        """Replace the source of ``node``."""
        self._edits.append((*self._span(node), False, text))

    def remove(self, node: ast.stmt) -> None:
        """Remove a statement with its lines, or leave ``pass`` if it shares them with others."""
        start, end = self._span(node)
        first, last = self._lines[node.lineno - 1], self._lines[(node.end_lineno or 0) - 1]
        before = first.encode()[: node.col_offset].decode()
        after = last.encode()[node.end_col_offset or 0 :].decode().strip()
        if before.strip() or (after and not after.startswith("#")):
            self.replace(node, "pass")
            return
        start -= len(before)
        end = self._starts[(node.end_lineno or 0) - 1] + len(last)
        if end < len(self.code):
            end += 1
        else:
            start = max(start - 1, 0)
        self._edits.append((start, end, False, ""))

    def surround(self, node: ast.expr, before: str, after: str) -> None:
        """Put text directly before and after an expression."""
        start, end = self._span(node)
        self._edits += [(start, start, False, before), (end, end, False, after)]

    def append_argument(self, call: ast.Call, text: str) -> None:
        """Add an argument at the end of a call."""
        _, end = self._span(call)
        inside = self.code[: end - 1].rstrip()
        if inside.endswith(","):
            text = f" {text}"
        elif not inside.endswith("("):
            text = f", {text}"
        self._edits.append((len(inside), len(inside), False, text))

    def add_after(self, node: ast.stmt, *statements: str) -> None:
        """Add simple statements after a simple one, on lines of their own if it has its own."""
        _, end = self._span(node)
        line = self._lines[node.lineno - 1]
        indentation = line[: node.col_offset]
        if indentation.strip():  # if ready: step()
            text = "".join(f"; {each}" for each in statements if not each.startswith("#"))
        else:
            text = "".join(f"\n{indentation}{each}" for each in statements)
        self._edits.append((end, end, True, text))  # after all that surrounds it

    def result(self) -> str:
        """Return the edited source."""
        text = self.code
        in_order = sorted(self._edits, key=lambda edit: edit[:3])
        for start, end, _, new in reversed(in_order):
            text = text[:start] + new + text[end:]
        return text

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._position(node.lineno, node.col_offset),
            self._position(node.end_lineno, node.end_col_offset),
        )

    def _position(self, line: int, column: int) -> int:
        """Return the place of a line and a column, which counts bytes."""
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)


def indented(code: str, by: str = "    ") -> str:
    """Indent source; lines inside of strings stay as they are."""
    inside: set[int] = set()
    starts: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind.endswith("STRING_START"):
            starts.append(token.start[0])
        elif kind.endswith("STRING_END"):
            inside.update(range(starts.pop() + 1, token.end[0] + 1))
    return "\n".join(
        line if number in inside or not line.strip() else by + line
        for number, line in enumerate(code.split("\n"), 1)
    )
