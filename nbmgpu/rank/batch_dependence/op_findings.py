"""Records what operators do with samples, other than combining them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from nbmgpu.rank.loss.loss_graph import ReducedDims, normalize_dims
from nbmgpu.rank.source_analysis.batch_shapes import reshapes_to_batch_size
from nbmgpu.rank.source_analysis.stack_frames import current_cell_line

from .escaped_values import EscapedValues
from .op_call import OpCall
from .tags import Batched

CAT = torch.ops.aten.cat.default

VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
REDUCTIONS = (torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim)


class OpFindings:
    """Findings about the operators of the observed steps.

    Attributes:
        global_batch_size: samples in the global batch.
        reduces_batch_dim: for each reduced (ndim, dims), whether the last such reduction was over
            samples.
        reshape_line: the line of the cell that reshapes a shard to the size of the global batch.
        joins_older_rows: whether samples were concatenated with rows older than the step.
    """

    def __init__(self, escaped: EscapedValues) -> None:
        """Start without findings; ``escaped`` knows which tensors are older than the step."""
        self.global_batch_size = 0
        self.reduces_batch_dim: dict[ReducedDims, bool] = {}
        self.reshape_line: int | None = None
        self.joins_older_rows = False
        self._splits_into_one = self._concatenates_one = False
        self._escaped = escaped

    @property
    def is_one_piece(self) -> bool:
        """Whether batches are split into pieces, and the rank's shard is a single piece."""
        return self._splits_into_one and not self._concatenates_one

    def record(self, func: Any, call: OpCall, out: Any) -> None:
        """Record an operator call that has tagged operands, and its output."""
        self._splits_into_one |= _splits_into_one(func, call, out)
        concatenates_one = (
            func is CAT and len(call.tensors) == 1 and isinstance(call.tags[0], Batched)
        )
        self._concatenates_one |= concatenates_one
        self._record_reduction(func, call)
        self.joins_older_rows |= self._joins_older_rows(func, call)
        if self.reshape_line is None and self._reshapes_to_global_batch(func, call, out):
            self.reshape_line = current_cell_line(sys._getframe())

    def _record_reduction(self, func: Any, call: OpCall) -> None:
        tag, ndim = call.tags[0], call.tensors[0].ndim
        if func in REDUCTIONS and isinstance(tag, Batched) and call.arguments.get("dim"):
            dims = normalize_dims((ndim, tuple(call.arguments["dim"])))
            self.reduces_batch_dim[dims] = tag.dim % ndim in dims[1]

    def _joins_older_rows(self, func: Any, call: OpCall) -> bool:
        if func is not CAT:
            return False
        dim = call.arguments.get("dim", 0)
        pairs = list(zip(call.tensors, call.tags, strict=True))
        along = any(isinstance(tag, Batched) and not (tag.dim - dim) % x.ndim for x, tag in pairs)
        return along and any(
            tag is None and x.numel() and self._escaped.predates_step(x) for x, tag in pairs
        )

    def _reshapes_to_global_batch(self, func: Any, call: OpCall, out: Any) -> bool:
        """Return whether a view has as many rows as the global batch has samples, on purpose.

        If each sample of a shard has two parts, two ranks' views have as many rows by chance, so
        the source of the call must show the size.
        """
        tag = call.tags[0]
        if func not in VIEWS or not isinstance(tag, Batched) or not out.ndim:
            return False
        is_first = tag.dim == -len(call.shapes[0])
        matches = is_first and out.shape[0] == self.global_batch_size > len(tag.samples)
        return matches and reshapes_to_batch_size(sys._getframe(), self.global_batch_size)


def _splits_into_one(func: Any, call: OpCall, out: Any) -> bool:
    """Return whether samples were split into pieces, and the shard is a single piece."""
    if func is not torch.ops.aten.split.Tensor or len(out) != 1:
        return False
    tensor, tag, dim = call.tensors[0], call.tags[0], call.arguments.get("dim", 0)
    return isinstance(tag, Batched) and (tag.dim - dim) % max(tensor.ndim, 1) == 0
