"""Tells whether a loop over a data loader is a training loop.

A loader is sharded among ranks only if gradients are computed from its batches.  A loop that
cannot reach ``backward()`` (an evaluation, a pass that computes a mean) iterates over all batches
on every rank, so that its results are those of one device.  The answer comes from the source of
the loop and of the functions that it calls.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

from .called_functions import calls_in, parse_function, resolve, user_function
from .loader_loops import current_loop, yields_batches
from .stack_frames import LIBRARIES, frame_outside

TRAINING_METHODS = {
    "backward", "step", "fit", "train_step", "training_step", "manual_backward", "minimize"
}  # fmt: skip
"""Method names whose call may run a backward pass in library code, which is not analyzed."""

MAX_DEPTH = 6

MANUAL_ITERATION = re.compile(r"\b(iter|next)\(")
"""Matches a line that takes batches one by one, for a loop that cannot be found from here."""

PEEK = re.compile(r"\bnext\(\s*iter\(")
"""Matches a line that takes a single batch to look at."""

library_checks: list[Callable[[types.FrameType | None], bool | None]] = []
"""Answers to ``loop_trains`` by libraries with loops of their own; None: not one of theirs."""


def loop_trains(frame: types.FrameType | None) -> bool | None:
    """Return whether the loop that begins in ``frame`` or its callers may train.

    For a generator that yields batches, the loop that consumes the generator counts.

    Returns:
        True or False for a loop or comprehension whose source is available.  None for
        ``it = iter(loader)``, which may feed any loop.  False for ``next(iter(loader))``, which
        looks at one batch, and for ``list(loader)`` and other consumers without a visible loop.
    """
    for check in library_checks:
        if (answer := check(frame)) is not None:
            return answer
    frame = frame_outside(frame, LIBRARIES)
    if frame is None:
        return False
    loop, line = current_loop(frame)
    if loop is None:
        return None if MANUAL_ITERATION.search(line) and not PEEK.search(line) else False
    if _may_train(loop.body, {**frame.f_globals, **frame.f_locals}, 0):
        return True
    return loop_trains(frame.f_back) if yields_batches(frame, loop) else False


def _may_train(body: list[ast.stmt], names: dict[str, Any], depth: int) -> bool:
    methods = {c.func.attr for c in calls_in(body) if isinstance(c.func, ast.Attribute)}
    # Ranks do not average gradients of ``autograd.grad``: ``step`` alone does not count.
    training_methods = TRAINING_METHODS - {"step"} if "grad" in methods else TRAINING_METHODS
    for call in calls_in(body):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in training_methods:
            if not _is_profiler_step(function, names):
                return True
            continue
        target = resolve(function, names)
        if target is None:
            continue  # a method of an object created in the loop, with a name that does not train
        if _target_trains(target, depth):
            return True
    return False


def _is_profiler_step(function: ast.Attribute, names: dict[str, Any]) -> bool:
    """Return whether ``x.step()`` is a profiler's, not an optimizer's."""
    target = resolve(function.value, names)
    module = type(target).__module__
    return target is not None and module.startswith(("torch.profiler", "torch.autograd.profiler"))


def _target_trains(target: Any, depth: int) -> bool:
    function = user_function(target)
    return function is not None and _function_trains(function, depth)


def _function_trains(function: types.FunctionType, depth: int) -> bool:
    if depth >= MAX_DEPTH:
        return True
    tree = parse_function(function)
    if tree is None:
        return "backward" in function.__code__.co_names
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    return _may_train(tree.body, names, depth + 1)
