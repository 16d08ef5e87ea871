"""Sees the operations of some training steps, and what becomes of the samples in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils.weak import WeakTensorKeyDictionary

from nbmgpu.rank.data.current_batch import Weak, tensors_in
from nbmgpu.rank.loss.autograd_nodes import added_up
from nbmgpu.rank.loss.reductions import reduces
from nbmgpu.rank.source_analysis.batch_shapes import reshapes_to_batch_size
from nbmgpu.rank.source_analysis.stack_frames import current_cell_line

from .kept_values import Kept, memory_of
from .op_call import Call
from .op_rules import after, loses
from .row_tags import Coupled, One, Rows, Tag

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph

CAT = torch.ops.aten.cat.default

VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
REDUCTIONS = (torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim)

Tags = MutableMapping[torch.Tensor, Tag]


class Watch(dispatch.TorchDispatchMode):
    """Sees every operation, below autograd."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled: else torch gives up compiling it, for good."""
        return True

    def __init__(self) -> None:
        """Know of no sample."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.over: dict[tuple[int, tuple[int, ...]], bool] = {}
        self.tags: Tags = WeakTensorKeyDictionary()
        self.idle = False
        self._samples = 0
        self._batches = self._passes = 0
        self._covered: frozenset[int] = frozenset()
        self._pieces = 0
        self._known = True
        self._split = self._rejoined = False
        self._alone: set[int] = set()
        self.joined = self.lost = False
        self.whole = 0
        self.shaped: int | None = None
        self.kept = Kept()

    def add(self, tensors: list[torch.Tensor], samples: int, whole: int) -> None:
        """Look at ``samples`` of a batch of ``whole`` with these ``tensors``, samples first."""
        self.whole = whole
        rows = tuple(range(samples))
        self._samples = max(self._samples, samples)
        self._alone.clear()
        self.lost = False
        self._batches += 1
        self.kept.made((), tensors)
        self.kept.given |= set(map(memory_of, tensors))
        for tensor in tensors:
            self.tags[tensor] = Rows(-tensor.ndim, 1, rows, frozenset(rows))

    def made(self, batch: Weak) -> None:
        """Know that the tensors of a batch are no older than the step."""
        self.kept.made((), [tensor for held in batch if (tensor := held()) is not None])

    def meet_array(self, tensor: torch.Tensor) -> None:
        """Look at a tensor that becomes an array or a list."""
        if not self.idle and not isinstance(self.tags.get(tensor), One | None):
            self.kept.look_at_array(tensor)

    def sees_others(self, graph: LossGraph) -> bool:
        """Tell whether a reduction of ``graph`` is over others than samples of the share.

        As many as these may be made for them: negatives, what a generator makes.
        """
        firsts = (added_up(node)[:1] for node in graph.nodes if reduces(node))
        return not self.lost and any(s and s[0] % self._samples for s in firsts)

    def note(self, loss: torch.Tensor) -> Tag | None:
        """Take in what a backward pass begins with."""
        tag = self.tags.get(loss)
        self._passes += 1
        self._known &= tag is not None and not isinstance(tag, Coupled)
        if tag is not None:
            self._covered |= tag.seen
            self._pieces += 0 < len(tag.seen) < self._samples
        return tag

    @property
    def done(self) -> bool:
        """Whether all batches have been trained on, or their samples have been lost."""
        return not self._known or self._passes >= self._batches

    def mark_as_global(self, losses: Sequence[torch.Tensor]) -> None:
        """Know that losses, buffers, and all that share their memory, are of all ranks now."""
        memories, buffers = {memory_of(loss) for loss in losses}, self.kept.buffers
        for tensor in [*self.tags]:
            memory = memory_of(tensor)
            if memory in buffers or (memory in memories and tensor.ndim == 0):
                del self.tags[tensor]

    @property
    def trained(self) -> bool:
        """Whether there has been a backward pass."""
        return self._passes > 0

    @property
    def in_pieces(self) -> bool:
        """Whether a batch was trained on in several pieces."""
        one = self._split and not self._rejoined
        return self._known and (one or 1 < self._pieces == self._passes)

    @property
    def alone(self) -> int:
        """How many samples have a number of their own, such as a loss: all of them, or 0."""
        return len(self._alone) if len(self._alone) == self._samples else 0

    @property
    def covers_in_part(self) -> bool:
        """Whether batches were trained on, but not all of their samples."""
        return self._known and 0 < len(self._covered) < self._samples

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, then tag what it gave."""
        kwargs = kwargs or {}
        if self.idle:
            return func(*args, **kwargs)
        try:
            call = Call.of(func, args, kwargs, self.tags)
        except Exception:  # of an argument that is like no other: nothing is known
            call = None
        out = func(*args, **kwargs)
        if call is not None:
            self.idle = True  # rules may look at values
            try:
                self.kept.look_at(call)
                with suppress(Exception):  # of an operation that is like no other
                    self._look_at(func, call, out)
                self._tag(call, out)
            finally:
                self.idle = False
        elif isinstance(out, torch.Tensor) and out in self.tags:
            del self.tags[out]  # written over with something else
        fresh = func is torch.ops.aten.lift_fresh.default  # what torch.tensor() ends with
        self.kept.made(() if fresh else tensors_in((args, kwargs)), tensors_in(out))
        return out

    def _look_at(self, func: Any, call: Call, out: Any) -> None:
        """Take note of what is done with samples, besides what becomes of them."""
        self._split |= _leaves_one(func, call, out)
        rejoins = func is CAT and len(call.tensors) == 1 and isinstance(call.tags[0], Rows)
        self._rejoined |= rejoins
        self._note_reduction(func, call)
        self.joined |= self._joins_others(func, call)
        if self.shaped is None and self._is_shaped_by_whole(func, call, out):
            self.shaped = current_cell_line(sys._getframe())

    def _note_reduction(self, func: Any, call: Call) -> None:
        """Remember whether a reduction over some dimensions, the last such, is over samples."""
        tag, ndim = call.tags[0], call.tensors[0].ndim
        if func in REDUCTIONS and isinstance(tag, Rows) and call.named.get("dim"):
            over = dims_of((ndim, tuple(call.named["dim"])))
            self.over[over] = tag.dim % ndim in over[1]

    def _joins_others(self, func: Any, call: Call) -> bool:
        """Tell whether samples are joined with rows that are older than the step."""
        if func is not CAT:
            return False
        dim = call.named.get("dim", 0)
        pairs = list(zip(call.tensors, call.tags, strict=True))
        along = any(isinstance(tag, Rows) and not (tag.dim - dim) % x.ndim for x, tag in pairs)
        return along and any(
            tag is None and x.numel() and self.kept.predates_step(x) for x, tag in pairs
        )

    def _is_shaped_by_whole(self, func: Any, call: Call, out: Any) -> bool:
        """Tell whether a view has as many rows as the whole batch has samples, and means them.

        Where a share's samples have two parts each, two ranks' views have as many rows by chance.
        """
        tag = call.tags[0]
        if func not in VIEWS or not isinstance(tag, Rows) or not out.ndim:
            return False
        first = tag.dim == -len(call.shapes[0])
        matches = first and out.shape[0] == self.whole > len(tag.rows)
        return matches and reshapes_to_batch_size(sys._getframe(), self.whole)

    def _tag(self, call: Call, out: Any) -> None:
        outs = list(out) if isinstance(out, tuple | list) else [out]
        try:
            found = after(call, outs)
        except Exception:  # a rule that met what it was not made for: nothing is known
            found = [None] * len(outs)
        first = outs[0] if outs else None
        of_numbers = isinstance(first, torch.Tensor) and first.is_floating_point()
        self.lost |= of_numbers and loses(call, found)
        for tensor, tag in zip(outs, found, strict=False):
            if type(tensor) is not torch.Tensor:
                continue
            if tag is not None:
                self.tags[tensor] = _placed(tag)
                if isinstance(tag, One) and not tensor.ndim and tensor.is_floating_point():
                    self._alone.add(tag.row)
            elif tensor in self.tags:
                del self.tags[tensor]


def dims_of(reduction: tuple[int, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
    """Return over which of how many dimensions a reduction is, in the one form that is compared."""
    ndim, dims = reduction
    return ndim, tuple(sorted(dim % ndim for dim in dims))


def _leaves_one(func: Any, call: Call, out: Any) -> bool:
    """Tell whether samples were split into pieces, of which the share is one alone."""
    if func is not torch.ops.aten.split.Tensor or len(out) != 1:
        return False
    tensor, tag, dim = call.tensors[0], call.tags[0], call.named.get("dim", 0)
    return isinstance(tag, Rows) and (tag.dim - dim) % max(tensor.ndim, 1) == 0


def _placed(tag: Tag) -> Tag:
    """Return ``tag`` with the line of the cell that is under way, where it has none yet."""
    if not isinstance(tag, Coupled) or tag.line:
        return tag
    return replace(tag, line=current_cell_line(sys._getframe()))


@contextmanager
def without(watch: Watch) -> Iterator[None]:
    """Take ``watch`` off for a while, where it is on."""
    above = take_off(watch)
    try:
        yield
    finally:
        if above is not None:
            put_on(watch, above)


def put_on(watch: Watch, below: int = 0) -> None:
    """Put ``watch`` on the stack of modes, ``below`` so many others."""
    above = [dispatch._pop_mode() for _ in range(below)]
    watch.__enter__()  # type: ignore[no-untyped-call]
    for mode in reversed(above):
        dispatch._push_mode(mode)


def take_off(watch: Watch) -> int | None:
    """Take ``watch`` from the stack of modes; return how many lay above, None if it was not on."""
    above = []
    while (top := dispatch._get_current_dispatch_mode()) is not None and top is not watch:
        above.append(dispatch._pop_mode())
    if top is watch:
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for mode in reversed(above):
        dispatch._push_mode(mode)
    return len(above) if top is watch else None
