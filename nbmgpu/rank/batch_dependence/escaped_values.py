"""Detects values of the batch that outlive the step: numbers read, values written to old tensors.

A number that leaves torch (``.item()``) and a tensor older than the step that is written to (a
table of losses, a queue) depend on the rank's shard.  They cannot be tracked further: a number
may come back as a factor of the loss.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nbmgpu.rank.source_analysis.stack_frames import current_cell_line, source_line, user_frame

from .op_call import OpCall
from .tags import CrossSample, Tag

ITEM_OP = "_local_scalar_dense"
"""The operator behind ``.item()``; indexing and branching on a tensor call it, too."""

READ_PATTERN = re.compile(
    r"""\.(item|format)\(|(?<![.\w])(float|int|round|print|math\.\w+)\(|["']\s*%"""
    r"""|(?<!["'])\b([rR]?[fF]|[fF][rR])["']"""
)
"""Matches code that reads a number explicitly, or prints it."""

ACCUMULATE_PATTERN = re.compile(
    r"\b(append|extend|update|add|concatenate|v?stack)\(|\+=|score|auc|acc|metric"
)
"""Matches code that accumulates its arguments, or computes metrics from them."""

COMPUTE_PATTERN = re.compile(
    r"""(?<![.\w])(float|int|round|min|max|sum|set)\("""
    r"""|\b(np|numpy)\.(linalg|amax|amin|average|max|mean|median|min|percentile|ptp|quantile|std"""
    r"""|sum|var)\b|(numpy|tolist)\(\)\.(max|mean|min|std|sum|var)\("""
)
"""Matches code that computes a number from an array or a list."""

NO_STORAGE = 0


@dataclass
class EscapedValues:
    """Values that the user's code, not a library's, takes out of a batch.

    Attributes:
        read_line: the first line of the cell that reads a number; 0 if code outside the cell does,
            None if none does.
        written_line: the same for a write to a tensor older than the step.
        averaged_line: the same for a write to a buffer that ranks average after each backward pass.
        batch_storages: storages of batches.
        buffer_storages: storages of such buffers.
    """

    read_line: int | None = None
    written_line: int | None = None
    averaged_line: int | None = None
    batch_storages: set[int] = field(default_factory=set)
    buffer_storages: set[int] = field(default_factory=set)
    _step_storages: set[int] = field(default_factory=lambda: {NO_STORAGE})

    def register_outputs(self, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        """Register the storages that an operator has allocated: those that are not its inputs'."""
        old = {storage_id(tensor) for tensor in inputs}
        self._step_storages |= {storage_id(output) for output in outputs} - old

    def check_op(self, call: OpCall) -> None:
        """Check an operator call that has tagged operands."""
        tensor, tag = call.tensors[0], call.tags[0]
        if self.read_line is None and call.name == ITEM_OP and tensor.dtype != torch.bool:
            self.read_line = _user_line(None if _is_position(tag) else READ_PATTERN)
        if tag is None and call.writes and self.predates_step(tensor):
            if storage_id(tensor) in self.buffer_storages:
                self.averaged_line = (
                    _user_line() if self.averaged_line is None else self.averaged_line
                )
            elif self.written_line is None:
                self.written_line = _user_line()

    def check_array_export(self, tensor: Tensor) -> None:
        """Check a tagged tensor that is converted to an array or a list, as by ``.numpy()``.

        Only accumulation and numbers computed from them count, since the values may be shown or be
        lengths.  Tensors of the batch itself are no results to accumulate.
        """
        if self.read_line is None:
            self.read_line = _user_line(COMPUTE_PATTERN)
        if self.read_line is None and storage_id(tensor) not in self.batch_storages:
            self.read_line = _user_line(ACCUMULATE_PATTERN)

    def predates_step(self, tensor: Tensor) -> bool:
        """Return whether a tensor is older than the step."""
        return storage_id(tensor) not in self._step_storages


def storage_id(tensor: Tensor) -> int:
    """Return an id of the storage that a tensor and its views share, if there is one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor, or a wrapper subclass
        return NO_STORAGE


def _is_position(tag: Tag | None) -> bool:
    """Return whether a number is the position of a sample, as in ``losses[losses.argmax()]``."""
    return isinstance(tag, CrossSample) and tag.operation in ("argmax", "argmin")


def _user_line(pattern: re.Pattern[str] | None = None) -> int | None:
    """Return the current line of the cell, None if the user's code is not the caller.

    Also None if the user's line does not match ``pattern``.
    """
    frame = user_frame(sys._getframe(1))
    if frame is None or (pattern and not pattern.search(source_line(frame))):
        return None
    return current_cell_line(frame)
