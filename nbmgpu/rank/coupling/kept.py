"""What a step takes out of its batch for later: numbers that it reads, values that it keeps.

A number that leaves torch (``.item()``), and a tensor older than the step that is written to (a
table of losses, a queue), have what the rank's share gives.  Nothing follows them from there: a
number may come back as a factor of the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nbmgpu.rank.failures import CELL_FILE_MARK

from .call import Call

READS = "_local_scalar_dense"
"""What ``.item()``, ``float()`` and ``int()`` call; and ``bool()``, but branches are no numbers."""


@dataclass
class Kept:
    """What the code of the notebook, and not a library, has taken out of a batch.

    ``read`` and ``written`` are the lines of the cell that did so first: 0 where that is a
    function of another cell, None where nothing did.
    """

    read: int | None = None
    written: int | None = None
    _new: set[int] = field(default_factory=set)

    def made(self, given: Iterable[Tensor], outs: Iterable[Tensor]) -> None:
        """Know which memory an operation has made: that of results, if not of what was given."""
        with suppress(RuntimeError, NotImplementedError):  # sparse tensors have none
            old = {memory_of(tensor) for tensor in given}
            self._new |= {memory_of(out) for out in outs} - old

    def look_at(self, func: Any, call: Call) -> None:
        """Look at an operation that was given samples."""
        tensor, tag = call.tensors[0], call.tags[0]
        if call.name == READS and self.read is None:
            if tensor.dtype != torch.bool:
                self.read = _users_line()
        elif self.written is None and tag is None and _writes_first(func):
            with suppress(RuntimeError, NotImplementedError):
                if memory_of(tensor) not in self._new:
                    self.written = _users_line()


def memory_of(tensor: Tensor) -> int:
    """Return what stands for the memory that a tensor and its views share."""
    return int(tensor.untyped_storage()._cdata)


def _writes_first(func: Any) -> bool:
    """Tell whether an operation writes to its first argument, as ``add_`` and ``copy_`` do."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else []
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and bool(alias.is_write)


def _users_line() -> int | None:
    """Return the line of the cell that is under way, 0 elsewhere in the notebook's own code.

    None where a library is.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("torch", "nbmgpu"):
            break
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != "__main__":
        return None
    return line_of_cell(frame)


def line_of_cell(frame: FrameType | None) -> int:
    """Return the line of the cell at which ``frame`` or one of its callers is, 0 if none is."""
    while frame is not None:
        if CELL_FILE_MARK in frame.f_code.co_filename:
            return frame.f_lineno
        frame = frame.f_back
    return 0
