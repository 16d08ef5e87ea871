"""Does code shape a tensor by a number that is the size of the whole batch?"""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType
from typing import Any

from .called_functions import resolve
from .stack_frames import user_frame

SHAPING = {"view", "reshape"}


def reshapes_to_batch_size(frame: FrameType | None, size: int) -> bool:
    """Tell whether the line under way in ``frame`` is ``x.view(batch_size, ...)`` or the like.

    Args:
        frame: where a view is made, or within what torch does for it.
        size: what the name, attribute or number stands for that comes first.
    """
    frame = user_frame(frame)
    if frame is None:
        return False
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    names = {**frame.f_globals, **frame.f_locals}
    firsts = (n for first, last, n in _firsts(source) if first <= frame.f_lineno <= last)
    return any(_value(node, names) == size for node in firsts)


@functools.lru_cache(maxsize=64)
def _firsts(source: str) -> list[tuple[int, int, ast.expr]]:
    """Return the first number of every shape in ``source``, with the lines of its call."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []
    calls = (n for n in nodes if isinstance(n, ast.Call) and n.args)
    shaping = (c for c in calls if getattr(c.func, "attr", "") in SHAPING)
    return [(c.lineno, c.end_lineno or c.lineno, _first(c.args)) for c in shaping]


def _first(arguments: list[ast.expr]) -> ast.expr:
    """Return the first number of a shape; that of ``torch.reshape(x, (n, -1))`` comes last."""
    last = arguments[-1]
    return last.elts[0] if isinstance(last, ast.Tuple | ast.List) and last.elts else arguments[0]


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    return node.value if isinstance(node, ast.Constant) else resolve(node, names)
