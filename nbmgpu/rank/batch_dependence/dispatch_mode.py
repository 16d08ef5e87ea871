"""A dispatch mode that tracks the samples of a batch through the operators of a training step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils.weak import WeakTensorKeyDictionary

from nbmgpu.rank.data.batch_tensors import WeakTensors, iter_tensors
from nbmgpu.rank.loss.autograd_nodes import input_shape
from nbmgpu.rank.loss.reductions import reduces
from nbmgpu.rank.source_analysis.batch_shapes import reshapes_to_batch_size
from nbmgpu.rank.source_analysis.stack_frames import current_cell_line

from .escaped_values import EscapedValues, storage_id
from .op_call import OpCall
from .op_rules import loses_samples, output_tags
from .tags import Batched, CrossSample, SingleSample, Tag

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph

CAT = torch.ops.aten.cat.default

VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
REDUCTIONS = (torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim)

Tags = MutableMapping[torch.Tensor, Tag]


class SampleTrackingMode(dispatch.TorchDispatchMode):
    """Observes every operator below autograd, and tags tensors with the samples in them.

    Attributes:
        tags: the tags of tensors.
        escaped: values that outlive the step.
        reduces_batch_dim: for each reduced (ndim, dims), whether the last such reduction was over
            samples.
        global_batch_size: samples in the global batch.
        reshape_line: the line of the cell that reshapes a shard to the size of the global batch.
        joins_older_rows: whether samples were concatenated with rows older than the step.
        lost: whether an output depends on samples that are no longer tracked.
        idle: whether operators are passed through without tracking.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled; otherwise torch stops compiling it for good."""
        return True

    def __init__(self) -> None:
        """Start without a batch."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.reduces_batch_dim: dict[tuple[int, tuple[int, ...]], bool] = {}
        self.tags: Tags = WeakTensorKeyDictionary()
        self.idle = False
        self._samples = 0
        self._batches = self._backward_passes = 0
        self._trained_samples: frozenset[int] = frozenset()
        self._partial_passes = 0
        self._all_tracked = True
        self._split_into_one = self._concatenated_one = False
        self._scalar_samples: set[int] = set()
        self.joins_older_rows = self.lost = False
        self.global_batch_size = 0
        self.reshape_line: int | None = None
        self.escaped = EscapedValues()

    def add_batch(self, tensors: list[torch.Tensor], samples: int, global_batch_size: int) -> None:
        """Start to track a batch.

        Args:
            tensors: tensors of the batch, whose first dimension is the batch dimension.
            samples: samples in the rank's shard.
            global_batch_size: samples in the global batch.
        """
        self.global_batch_size = global_batch_size
        positions = tuple(range(samples))
        self._samples = max(self._samples, samples)
        self._scalar_samples.clear()
        self.lost = False
        self._batches += 1
        self.escaped.register_outputs((), tensors)
        self.escaped.batch_storages |= set(map(storage_id, tensors))
        for tensor in tensors:
            self.tags[tensor] = Batched(-tensor.ndim, 1, positions, frozenset(positions))

    def register_batch(self, batch: WeakTensors) -> None:
        """Register the tensors of a batch, which are no older than the step."""
        alive = [tensor for held in batch if (tensor := held()) is not None]
        self.escaped.register_outputs((), alive)

    def on_array_export(self, tensor: torch.Tensor) -> None:
        """Check a tensor that is converted to an array or a list."""
        if not self.idle and not isinstance(self.tags.get(tensor), SingleSample | None):
            self.escaped.check_array_export(tensor)

    def reduces_other_rows(self, graph: LossGraph) -> bool:
        """Tell whether a reduction of ``graph`` is over rows other than the samples of the shard.

        Equally many rows, or multiples, may be created for the samples: negatives, a generator's
        outputs.
        """
        shapes = (input_shape(node)[:1] for node in graph.nodes if reduces(node))
        return not self.lost and any(s and s[0] % self._samples for s in shapes)

    def add_loss(self, loss: torch.Tensor) -> Tag | None:
        """Count a backward pass from ``loss``; return its tag."""
        tag = self.tags.get(loss)
        self._backward_passes += 1
        self._all_tracked &= tag is not None and not isinstance(tag, CrossSample)
        if tag is not None:
            self._trained_samples |= tag.sources
            self._partial_passes += 0 < len(tag.sources) < self._samples
        return tag

    @property
    def done(self) -> bool:
        """Whether all batches have been trained on, or a loss is not tracked."""
        return not self._all_tracked or self._backward_passes >= self._batches

    def mark_as_global(self, losses: Sequence[torch.Tensor]) -> None:
        """Drop the tags of losses and buffers, and of their views: all ranks have equal values."""
        storages, buffers = {storage_id(loss) for loss in losses}, self.escaped.buffer_storages
        for tensor in [*self.tags]:
            storage = storage_id(tensor)
            if storage in buffers or (storage in storages and tensor.ndim == 0):
                del self.tags[tensor]

    @property
    def trained(self) -> bool:
        """Whether there has been a backward pass."""
        return self._backward_passes > 0

    @property
    def trains_in_pieces(self) -> bool:
        """Whether a batch was split into pieces with a backward pass each."""
        one_piece = self._split_into_one and not self._concatenated_one
        return self._all_tracked and (
            one_piece or 1 < self._partial_passes == self._backward_passes
        )

    @property
    def samples_with_scalar(self) -> int:
        """Number of samples that have a scalar of their own, such as a loss: all of them, or 0."""
        return len(self._scalar_samples) if len(self._scalar_samples) == self._samples else 0

    @property
    def trains_on_subset(self) -> bool:
        """Whether batches were trained on, but not all of their samples."""
        return self._all_tracked and 0 < len(self._trained_samples) < self._samples

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, then tag its outputs."""
        kwargs = kwargs or {}
        if self.idle:
            return func(*args, **kwargs)
        try:
            call = OpCall.from_dispatch(func, args, kwargs, self.tags)
        except Exception:  # an argument of an unknown kind: not tracked
            call = None
        out = func(*args, **kwargs)
        if call is not None:
            self.idle = True  # rules may read values
            try:
                self.escaped.check_op(call)
                with suppress(Exception):  # an operator of an unknown kind
                    self._observe(func, call, out)
                self._tag_outputs(call, out)
            finally:
                self.idle = False
        elif isinstance(out, torch.Tensor) and out in self.tags:
            del self.tags[out]  # overwritten with values of no batch
        fresh = func is torch.ops.aten.lift_fresh.default  # the last operator of torch.tensor()
        self.escaped.register_outputs(
            () if fresh else iter_tensors((args, kwargs)), iter_tensors(out)
        )
        return out

    def _observe(self, func: Any, call: OpCall, out: Any) -> None:
        """Record what an operator does with samples, apart from its outputs' tags."""
        self._split_into_one |= _splits_into_one(func, call, out)
        concatenates_one = (
            func is CAT and len(call.tensors) == 1 and isinstance(call.tags[0], Batched)
        )
        self._concatenated_one |= concatenates_one
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
            tag is None and x.numel() and self.escaped.predates_step(x) for x, tag in pairs
        )

    def _reshapes_to_global_batch(self, func: Any, call: OpCall, out: Any) -> bool:
        """Tell whether a view has as many rows as the global batch has samples, on purpose.

        If each sample of a shard has two parts, two ranks' views have as many rows by chance, so
        the source of the call must show the size.
        """
        tag = call.tags[0]
        if func not in VIEWS or not isinstance(tag, Batched) or not out.ndim:
            return False
        is_first = tag.dim == -len(call.shapes[0])
        matches = is_first and out.shape[0] == self.global_batch_size > len(tag.samples)
        return matches and reshapes_to_batch_size(sys._getframe(), self.global_batch_size)

    def _tag_outputs(self, call: OpCall, out: Any) -> None:
        outputs = list(out) if isinstance(out, tuple | list) else [out]
        try:
            tags = output_tags(call, outputs)
        except Exception:  # a rule does not support these arguments: not tracked
            tags = [None] * len(outputs)
        first = outputs[0] if outputs else None
        is_float = isinstance(first, torch.Tensor) and first.is_floating_point()
        self.lost |= is_float and loses_samples(call, tags)
        for tensor, tag in zip(outputs, tags, strict=False):
            if type(tensor) is not torch.Tensor:
                continue
            if tag is not None:
                self.tags[tensor] = _with_line(tag)
                if isinstance(tag, SingleSample) and not tensor.ndim and tensor.is_floating_point():
                    self._scalar_samples.add(tag.sample)
            elif tensor in self.tags:
                del self.tags[tensor]


def normalize_dims(reduction: tuple[int, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
    """Return a reduction's (ndim, dims) with sorted, nonnegative dims, for comparison."""
    ndim, dims = reduction
    return ndim, tuple(sorted(dim % ndim for dim in dims))


def _splits_into_one(func: Any, call: OpCall, out: Any) -> bool:
    """Tell whether samples were split into pieces, and the shard is a single piece."""
    if func is not torch.ops.aten.split.Tensor or len(out) != 1:
        return False
    tensor, tag, dim = call.tensors[0], call.tags[0], call.arguments.get("dim", 0)
    return isinstance(tag, Batched) and (tag.dim - dim) % max(tensor.ndim, 1) == 0


def _with_line(tag: Tag) -> Tag:
    """Return ``tag`` with the current line of the cell, if it has no line yet."""
    if not isinstance(tag, CrossSample) or tag.line:
        return tag
    return replace(tag, line=current_cell_line(sys._getframe()))


@contextmanager
def mode_removed(mode: SampleTrackingMode) -> Iterator[None]:
    """Remove ``mode`` from the stack of dispatch modes for a while, if it is active."""
    above = pop_mode(mode)
    try:
        yield
    finally:
        if above is not None:
            push_mode(mode, above)


def push_mode(mode: SampleTrackingMode, below: int = 0) -> None:
    """Push ``mode`` to the stack of dispatch modes, ``below`` that many others."""
    above = [dispatch._pop_mode() for _ in range(below)]
    mode.__enter__()  # type: ignore[no-untyped-call]
    for other in reversed(above):
        dispatch._push_mode(other)


def pop_mode(mode: SampleTrackingMode) -> int | None:
    """Remove ``mode`` from the stack of dispatch modes.

    Returns:
        The number of modes above it, None if it was not active.
    """
    above = []
    while (top := dispatch._get_current_dispatch_mode()) is not None and top is not mode:
        above.append(dispatch._pop_mode())
    if top is mode:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for other in reversed(above):
        dispatch._push_mode(other)
    return len(above) if top is mode else None
