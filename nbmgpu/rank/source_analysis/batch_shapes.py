"""Detects reshapes of a shard to the size of the global batch."""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType
from typing import Any

from .called_functions import resolve
from .stack_frames import user_frame

RESHAPE_METHODS = {"view", "reshape"}


def reshapes_to_batch_size(frame: FrameType | None, size: int) -> bool:
    """Return whether the current line of ``frame`` is ``x.view(batch_size, ...)`` or the like.

    Args:
        frame: a frame that creates a view, or one of torch's frames below it.
        size: the value that the first name, attribute or number of the shape must have.
    """
    frame = user_frame(frame)
    if frame is None:
        return False
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    names = {**frame.f_globals, **frame.f_locals}
    sizes = (n for first, last, n in _leading_sizes(source) if first <= frame.f_lineno <= last)
    return any(_evaluate(node, names) == size for node in sizes)


@functools.lru_cache(maxsize=64)
def _leading_sizes(source: str) -> list[tuple[int, int, ast.expr]]:
    """Return first line, last line and leading size of each reshaping call in ``source``."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []
    calls = (n for n in nodes if isinstance(n, ast.Call) and n.args)
    reshapes = (c for c in calls if getattr(c.func, "attr", "") in RESHAPE_METHODS)
    return [(c.lineno, c.end_lineno or c.lineno, _leading_size(c.args)) for c in reshapes]


def _leading_size(arguments: list[ast.expr]) -> ast.expr:
    """Return the first size of a shape; in ``torch.reshape(x, (n, -1))`` the shape comes last."""
    last = arguments[-1]
    return last.elts[0] if isinstance(last, ast.Tuple | ast.List) and last.elts else arguments[0]


def _evaluate(node: ast.expr, names: dict[str, Any]) -> Any:
    return node.value if isinstance(node, ast.Constant) else resolve(node, names)
