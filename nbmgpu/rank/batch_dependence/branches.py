"""Detects branches of the cell on values of a batch, which each rank takes by its own shard."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from nbmgpu.rank.source_analysis.branch_tests import decides_other_things
from nbmgpu.rank.source_analysis.stack_frames import current_cell_line, source_line, user_frame

from .escaped_values import READ_PATTERN
from .op_call import OpCall
from .tags import CrossSample, SingleSample

COUNTING = {"any", "all"}
"""Operators whose truth values are for samples that exist or not, as in ``if mask.any():``."""

GUARD_PATTERN = re.compile(r"\bassert\b|isnan|isinf|isfinite|allclose")
"""Matches branches on samples that are lost anyway."""


@dataclass
class Branches:
    """The branches that the user's code, not a library's, has taken.

    Attributes:
        line: the first line of the cell that branches on a value of several samples; 0 if code
            outside the cell does, None if none does.
    """

    line: int | None = None
    _single: dict[tuple[str, int, int], set[int]] = field(default_factory=dict)
    """Samples that branches on single ones have read, by file, line and line of the cell."""

    def check_read(self, call: OpCall, value: Any) -> bool | None:
        """Check a number of the batch that the code reads.

        Args:
            call: of the operator behind ``.item()`` and ``bool()``.
            value: the number.

        Returns:
            What a branch decides that is right on shards if all ranks decide alike, such as whether
            a count is zero.  None for all else.
        """
        frame, is_bool = user_frame(sys._getframe(1)), call.tensors[0].dtype == torch.bool
        if frame is None or (not is_bool and READ_PATTERN.search(source_line(frame))):
            return None
        tag = call.tags[0]
        if isinstance(tag, SingleSample):
            if is_bool:
                here = frame.f_code.co_filename, frame.f_lineno, current_cell_line(frame)
                self._single.setdefault(here, set()).add(tag.sample)
            return None
        if is_bool and isinstance(tag, CrossSample) and tag.operation not in COUNTING:
            if self.line is None and not GUARD_PATTERN.search(source_line(frame)):
                self.line = current_cell_line(frame)
            return None
        return bool(value) if decides_other_things(frame) else None

    def find_line(self, shard_size: int) -> int | None:
        """Return ``line``, or the first one that branches on some of ``shard_size`` samples."""
        if self.line is not None:
            return self.line
        partial = (at for at, samples in self._single.items() if len(samples) < shard_size)
        return next((cell_line for _, _, cell_line in partial), None)
