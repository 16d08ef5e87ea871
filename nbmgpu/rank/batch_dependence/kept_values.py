"""What a step takes out of its batch for later: numbers that it reads, values that it keeps.

A number that leaves torch (``.item()``), and a tensor older than the step that is written to (a
table of losses, a queue), have what the rank's share gives.  Nothing follows them from there: a
number may come back as a factor of the loss.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nbmgpu.rank.source_analysis.stack_frames import current_cell_line, source_line, user_frame

from .op_call import Call

READS = "_local_scalar_dense"
"""What reading a number comes down to; but so do an index and a branch."""

ASKS = re.compile(
    r"""\.(item|format)\(|(?<![.\w])(float|int|round|print|math\.\w+)\(|["']\s*%"""
    r"""|(?<!["'])\b([rR]?[fF]|[fF][rR])["']"""
)
"""Code that asks for a number, or shows it."""

GATHERS = re.compile(r"\b(append|extend|update|add|concatenate|v?stack)\(|\+=|score|auc|acc|metric")
"""Code that puts aside what it is given, or judges it."""

NO_MEMORY = 0


@dataclass
class Kept:
    """What the user's code, and not a library's, has taken out of a batch.

    ``read`` and ``written`` are the lines of the cell that did so first: 0 where that is a
    function from elsewhere, None where nothing did; ``averaged`` is the line that wrote to a buffer
    which ranks average after each backward pass.  ``given`` is the memory of batches, ``buffers``
    that of such buffers.
    """

    read: int | None = None
    written: int | None = None
    averaged: int | None = None
    given: set[int] = field(default_factory=set)
    buffers: set[int] = field(default_factory=set)
    _new: set[int] = field(default_factory=lambda: {NO_MEMORY})

    def made(self, given: Iterable[Tensor], outs: Iterable[Tensor]) -> None:
        """Know which memory an operation has made: that of results, if not of what was given."""
        old = {memory_of(tensor) for tensor in given}
        self._new |= {memory_of(out) for out in outs} - old

    def look_at(self, call: Call) -> None:
        """Look at an operation that was given samples."""
        tensor, tag = call.tensors[0], call.tags[0]
        if self.read is None and call.name == READS and tensor.dtype != torch.bool:
            self.read = _line(ASKS)
        if tag is None and call.writes and self.predates_step(tensor):
            if memory_of(tensor) in self.buffers:
                self.averaged = _line() if self.averaged is None else self.averaged
            elif self.written is None:
                self.written = _line()

    def look_at_array(self, tensor: Tensor) -> None:
        """Look at a tensor of samples that becomes an array or a list, by ``.numpy()``.

        It may also be shown, or lengths, and what has come with the batch is no result.
        """
        if self.read is None and memory_of(tensor) not in self.given:
            self.read = _line(GATHERS)

    def predates_step(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is older than the step."""
        return memory_of(tensor) not in self._new


def memory_of(tensor: Tensor) -> int:
    """Return what stands for the memory that a tensor and its views share, if there is any."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or a tensor around others
        return NO_MEMORY


def _line(says: re.Pattern[str] | None = None) -> int | None:
    """Return the line of the cell that is under way, None where the user's code is not.

    Also None where the user's line does not have what it ``says``.
    """
    frame = user_frame(sys._getframe(1))
    if frame is None or (says and not says.search(source_line(frame))):
        return None
    return current_cell_line(frame)
