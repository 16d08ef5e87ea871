"""The loops that are running: where they are in the code, and how far they are."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from nbmgpu.runs.checkpoint_description import LoopEntry

from .loader_pass import PassRecord

MAX_PASSES = 64
"""Passes over loaders of which a loop keeps the random states."""


@dataclass(frozen=True)
class LoopSite:
    """A loop in the code.

    Attributes:
        function: qualified name of its function; empty for the cell itself.
        line: its line in the cell, or from the first line of the function.
        is_while: whether it is a ``while`` loop, whose iterations are not skipped.
        targets: the names that a ``for`` loop binds.
        outer: the loop around it in the same function.
    """

    function: str
    line: int
    is_while: bool
    targets: frozenset[str] = frozenset()
    outer: LoopSite | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Function and line, as a checkpoint identifies the loop."""
        return self.function, self.line

    def __str__(self) -> str:
        """Return the place in words."""
        return f"line {self.line}" + (f" of {self.function}()" if self.function else "")


@dataclass(eq=False)
class ActiveLoop:
    """A loop that is running, or the cell around all loops.

    Attributes:
        site: where it is in the code.
        depth: number of frames below the one that runs it.
        line: its line in the file.
        entry: how often the loop had begun before, in the same iteration of the loop around it.
        first_step: the training step when it began.
        count: number of iterations begun.
        step: the training step when the last iteration began.
        passes: the passes over loaders that began in it.
        entries: how often loops have begun in the current iteration.
        trained: those of them that are over and have trained, each with its ``entry``.
    """

    site: LoopSite
    depth: int
    line: int
    entry: int = 0
    first_step: int = 0
    count: int = 0
    step: int = 0
    passes: list[PassRecord] = field(default_factory=list)
    entries: Counter[LoopSite] = field(default_factory=Counter)
    trained: list[LoopEntry] = field(default_factory=list)

    @property
    def identity(self) -> LoopEntry:
        """The loop among those of the same iteration."""
        return LoopEntry(*self.site.place, self.entry)


class LoopStack:
    """The loops that are running, outermost first.

    Attributes:
        sites: every instrumented loop, by the number that its code passes.
        cell: the cell around all loops.
        active: the loops that are running; those that a ``break``, ``return`` or exception has
            ended are removed when another one begins or continues.
    """

    def __init__(self, training_step: Callable[[], int]) -> None:
        """Start outside of all loops; ``training_step`` returns the number of the current step."""
        self.sites: list[LoopSite] = []
        self.cell = ActiveLoop(LoopSite("", 0, is_while=True), 0, 0)
        self.active: list[ActiveLoop] = []
        self._training_step = training_step

    @property
    def levels(self) -> list[ActiveLoop]:
        """The cell, and the loops that are running."""
        return [self.cell, *self.active]

    def add(self, site: LoopSite) -> int:
        """Register a loop; return its number."""
        self.sites.append(site)
        return len(self.sites) - 1

    def enter(self, number: int) -> None:
        """Begin a loop in the calling frame, before its iterable is evaluated."""
        frame = sys._getframe(1)
        site, depth = self.sites[number], _depth(frame)
        active, step = self.active, self._training_step()
        while active and (
            active[-1].depth > depth
            or (active[-1].depth == depth and active[-1].site is not site.outer)
        ):
            self._leave()
        around = self.levels[-1]
        entry = around.entries[site]
        around.entries[site] += 1
        active.append(ActiveLoop(site, depth, frame.f_lineno, entry, step, step=step))

    def begin_iteration(self, number: int) -> ActiveLoop:
        """Begin an iteration of a loop that has been entered."""
        site, active = self.sites[number], self.active
        while active[-1].site is not site:
            self._leave()
        loop = active[-1]
        loop.count += 1
        loop.entries.clear()
        loop.trained.clear()
        return loop

    def _leave(self) -> None:
        """Remove the innermost loop, which is over."""
        loop = self.active.pop()
        if self._training_step() > loop.first_step:
            self.levels[-1].trained.append(loop.identity)

    def begin_pass(self, states: Any, frame: FrameType) -> PassRecord:
        """Record the random states before a pass over a loader, which ``frame`` begins."""
        loop = self.levels[-1]
        is_of_loop = loop is not self.cell and _depth(frame) == loop.depth
        in_body = loop.count > 0 and is_of_loop and frame.f_lineno != loop.line
        record = PassRecord(loop.count, states, in_body=in_body)
        loop.passes.append(record)
        del loop.passes[:-MAX_PASSES]
        return record


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth
