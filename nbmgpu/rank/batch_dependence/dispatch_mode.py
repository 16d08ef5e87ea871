"""A dispatch mode that tracks the samples of a batch through the operators of a training step."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections import defaultdict
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
from nbmgpu.rank.source_analysis.stack_frames import current_cell_line, user_frame

from .branches import Branches
from .escaped_values import ITEM_OP, EscapedValues, storage_id
from .op_call import OpCall
from .op_findings import OpFindings
from .op_rules import loses_samples, output_tags
from .position_indexing import BY_POSITION, selects_by_position
from .shard_dependence import ShardDependence
from .tags import Batched, CrossSample, SingleSample, Tag
from .trained_samples import TrainedSamples

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph

Tags = MutableMapping[torch.Tensor, Tag]


class SampleTrackingMode(dispatch.TorchDispatchMode):
    """Observes every operator below autograd, and tags tensors with the samples in them.

    Attributes:
        tags: the tags of tensors.
        escaped: values that outlive the step.
        branches: of the cell, on values of the batch.
        findings: what operators do with samples.
        trained: which samples have been trained on.
        lost: whether an output depends on samples that are no longer tracked.
        numbers: a hash for each batch, by its number, of what its step decides by, and of the
            numbers that it computes with after tensors were converted to arrays or lists.
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
        self.tags: Tags = WeakTensorKeyDictionary()
        self.escaped = EscapedValues()
        self._shard_dependence = ShardDependence(self.escaped.predates_step)
        self.branches = Branches()
        self.findings = OpFindings(self.escaped)
        self.trained = TrainedSamples()
        self.lost = self.idle = False
        self._scalar_samples: set[int] = set()
        self.numbers: dict[int, Any] = defaultdict(
            functools.partial(hashlib.blake2b, digest_size=8)
        )
        self._batch_number = 0
        self._export_line: int | None = None

    def add_batch(
        self, tensors: list[torch.Tensor], samples: int, global_batch_size: int, number: int
    ) -> None:
        """Start to track a batch.

        Args:
            tensors: tensors of the batch, whose first dimension is the batch dimension.
            samples: samples in the rank's shard.
            global_batch_size: samples in the global batch.
            number: of the batch, the same on all ranks.
        """
        self._batch_number = number
        self.findings.global_batch_size = global_batch_size
        self.trained.add_batch(samples)
        positions = tuple(range(samples))
        self._scalar_samples.clear()
        self.lost, self._export_line = False, None
        self.escaped.register_outputs((), tensors)
        self.escaped.batch_storages |= set(map(storage_id, tensors))
        for tensor in tensors:
            self.tags[tensor] = Batched(-tensor.ndim, 1, positions, frozenset(positions))

    def tag_in_any_batch(self, tensor: torch.Tensor) -> Tag | None:
        """Return the tag of ``tensor`` if its rows do not depend on what else is in the shard."""
        return None if tensor in self._shard_dependence else self.tags.get(tensor)

    def register_batch(self, batch: WeakTensors) -> None:
        """Register the tensors of a batch, which are no older than the step."""
        alive = [tensor for held in batch if (tensor := held()) is not None]
        self.escaped.register_outputs((), alive)

    def on_array_export(self, tensor: torch.Tensor) -> None:
        """Check a tensor that is converted to an array or a list."""
        if not self.idle and not isinstance(self.tags.get(tensor), SingleSample | None):
            self.escaped.check_array_export(tensor)
            if self._export_line is None and user_frame(sys._getframe()) is not None:
                self._export_line = current_cell_line(sys._getframe())

    def on_array_import(self, tensor: torch.Tensor) -> None:
        """Tag a tensor that is made of an array, which may be of values exported before.

        NumPy may have combined samples; if it has not, the whole batch has the same result.
        """
        if not self.idle and self._export_line is not None and tensor not in self.tags:
            self.tags[tensor] = CrossSample("numpy", self._export_line)

    def on_indexing(self, tensor: torch.Tensor, index: Any, result: Any) -> None:
        """Note if samples of a shard of one sample are picked by their position."""
        tag, made = self.tags.get(tensor), self.tags.get(result)
        samples = self.findings.global_batch_size
        if self.idle or not isinstance(tag, Batched) or made is None:
            return
        if selects_by_position(index, tensor.ndim + tag.dim, samples):
            picked = frozenset((BY_POSITION,))
            self.tags[result] = (
                replace(made, samples=(BY_POSITION,), sources=picked)
                if isinstance(made, Batched)
                else SingleSample(BY_POSITION)
            )

    def _add_numbers(self, call: OpCall) -> None:
        """Add Python numbers that are combined with samples, and may be computed from them."""
        if found := [float(each) for each in call.arguments.values() if isinstance(each, float)]:
            self.numbers[self._batch_number].update(repr(found).encode())

    def _add_decision(self, decision: bool | None) -> None:
        if decision is not None:
            self.numbers[self._batch_number].update(b"%d" % decision)

    def reduces_other_rows(self, graph: LossGraph) -> bool:
        """Return whether a reduction of ``graph`` is over rows other than the samples of the shard.

        Equally many rows, or multiples, may be created for the samples: negatives, a generator's
        outputs.  A single sample has one.
        """
        size = self.trained.shard_size
        rows = [input_shape(node)[0] for node in graph.nodes if reduces(node) and input_shape(node)]
        return not self.lost and any(n % size or n > size == 1 for n in rows)

    def add_loss(self, loss: torch.Tensor) -> Tag | None:
        """Count a backward pass from ``loss``; return its tag."""
        tag = self.tags.get(loss)
        self.trained.add_backward(tag)
        return tag

    def mark_as_global(self, losses: Sequence[torch.Tensor]) -> None:
        """Drop the tags of losses and buffers, and of their views: all ranks have equal values."""
        storages, buffers = {storage_id(loss) for loss in losses}, self.escaped.buffer_storages
        for tensor in [*self.tags]:
            storage = storage_id(tensor)
            if storage in buffers or (storage in storages and tensor.ndim == 0):
                del self.tags[tensor]

    @property
    def samples_with_scalar(self) -> int:
        """Number of samples that have a scalar of their own, such as a loss: all of them, or 0."""
        found = len(self._scalar_samples)
        return found if found == self.trained.shard_size else 0

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
                if call.name == ITEM_OP:
                    self._add_decision(self.branches.check_read(call, out))
                elif self._export_line is not None:
                    self._add_numbers(call)
                with suppress(Exception):  # an operator of an unknown kind
                    self.findings.record(func, call, out)
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

    def _tag_outputs(self, call: OpCall, out: Any) -> None:
        outputs = list(out) if isinstance(out, tuple | list) else [out]
        try:
            self._shard_dependence.observe(call, outputs)
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
