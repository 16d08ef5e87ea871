"""Finds uses of the whole batch in a loop over ``nbmgpu.share``, beside the rank's part of it."""

from __future__ import annotations

import ast
import types

from torch import Tensor

from .loader_loops import enclosing_loop
from .size_expressions import names_in


def loop_uses_whole_batch(frame: types.FrameType | None) -> bool:
    """Return whether the body reads a tensor that its batch is made of: ``xb`` of ``share(xb)``.

    A sum over such a tensor is the same on every rank, and would count once per rank.  Names that
    the loop binds itself, as ``x`` in ``for x in nbmgpu.share(x)``, are the rank's part.
    """
    frame, loop = enclosing_loop(frame)
    if frame is None or loop is None:
        return False
    names = {**frame.f_globals, **frame.f_locals}
    shared = (node for node in loop.iterables if isinstance(node, ast.Name))
    whole = {
        node.id
        for node in shared
        if isinstance(tensor := names.get(node.id), Tensor) and tensor.ndim
    } - loop.targets
    read = (node.id for statement in loop.body for node in names_in(statement))
    return not whole.isdisjoint(read)
