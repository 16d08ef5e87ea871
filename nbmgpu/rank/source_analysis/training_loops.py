"""Is a loop over a loader a training loop?

A loader is split among ranks only where gradients come of it.  A loop that
cannot reach ``backward()`` (an evaluation, a pass that computes a mean) is
left whole, so that whatever it computes is what one device computes.  The
answer is read from the source of the loop and of the functions it calls.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

from .called_functions import calls, resolve, tree_of, user_function
from .loader_loops import hands_on, loop_in
from .stack_frames import LIBRARIES, outside

TRAINS = {"backward", "step", "fit", "train_step", "training_step", "manual_backward", "minimize"}
"""Attribute names whose call may lead to a backward pass in code that is not ours to read."""

MAX_DEPTH = 6

HANDED = re.compile(r"\b(iter|next)\(")
"""A line that takes batches one by one, for a loop that cannot be seen from here."""

PEEK = re.compile(r"\bnext\(\s*iter\(")
"""A line that takes one batch to look at."""

library_checks: list[Callable[[types.FrameType | None], bool | None]] = []
"""What libraries with loops of their own answer for ``loop_trains``; None: not theirs."""


def loop_trains(frame: types.FrameType | None) -> bool | None:
    """Tell whether the loop that begins in ``frame`` or its callers may train.

    Returns:
        True or False for a loop or comprehension whose source can be read, None for
        ``it = iter(loader)``, which may feed any loop.  ``next(iter(loader))``, a look at
        one batch, is not a training loop, nor is ``list(loader)`` or whatever else takes
        the batches out of sight.  Of a generator that hands batches on, it is the loop
        around it that counts.
    """
    for library in library_checks:
        if (answer := library(frame)) is not None:
            return answer
    frame = outside(frame, LIBRARIES)
    if frame is None:
        return False
    loop, line = loop_in(frame)
    if loop is None:
        return None if HANDED.search(line) and not PEEK.search(line) else False
    if _may_train(loop.body, {**frame.f_globals, **frame.f_locals}, 0):
        return True
    return loop_trains(frame.f_back) if hands_on(frame, loop) else False


def _may_train(body: list[ast.stmt], names: dict[str, Any], depth: int) -> bool:
    called = {c.func.attr for c in calls(body) if isinstance(c.func, ast.Attribute)}
    trains = TRAINS - {"step"} if "grad" in called else TRAINS  # gradients that nobody averages
    for call in calls(body):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in trains:
            if not _is_harmless(function, names):
                return True
            continue
        target = resolve(function, names)
        if target is None:
            continue  # a method of an object made in the loop: its name said nothing
        if _target_trains(target, depth):
            return True
    return False


def _is_harmless(function: ast.Attribute, names: dict[str, Any]) -> bool:
    """Tell whether ``x.step()`` is a profiler's or a progress bar's, not an optimizer's."""
    target = resolve(function.value, names)
    module = type(target).__module__
    return target is not None and module.startswith(("torch.profiler", "torch.autograd.profiler"))


def _target_trains(target: Any, depth: int) -> bool:
    function = user_function(target)
    return function is not None and _function_trains(function, depth)


def _function_trains(function: types.FunctionType, depth: int) -> bool:
    if depth >= MAX_DEPTH:
        return True
    tree = tree_of(function)
    if tree is None:
        return "backward" in function.__code__.co_names
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    return _may_train(tree.body, names, depth + 1)
