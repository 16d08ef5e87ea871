"""Looks at the operations of some training steps, and tells people what it has found."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils.weak import WeakTensorKeyDictionary

from nbmgpu.rank import notices
from nbmgpu.rank.data.batch_in_use import Weak, tensors_in, weakly
from nbmgpu.rank.losses.nodes import added_up
from nbmgpu.rank.losses.reductions import reduces
from nbmgpu.rank.source.frames import line_of_cell

from .arrays import look_at_arrays
from .call import Call
from .kept import Kept, memory_of
from .mixing import NORMALISED
from .rules import after, loses
from .tags import Coupled, One, Rows, Tag, Total

if TYPE_CHECKING:
    from nbmgpu.rank.losses.graph import LossGraph
    from nbmgpu.rank.recorder import Recorder

MOST_SAMPLES = 4096
"""Samples of a share up to which their places are kept."""

PATIENCE = 8
"""Batches that may be read before the one looked at is used."""

FEW = 2
"""Terms that a loss of a whole share may have, and a share as many samples, by chance."""

CAT = torch.ops.aten.cat.default
REDUCTIONS = (torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim)

BY_NUMBER = {"chunk", "tensor_split", "array_split"}
"""Names by which code cuts a batch into so many pieces, whatever its size."""

NOTHING: AbstractContextManager[None] = nullcontext()


class Coupling:
    """Follows the samples of the batches numbered 1, 2, 4, 8, 16, ... through their steps.

    ``cuts`` tells that steps were seen which train on a batch in pieces, each by itself.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Have looked at nothing; what is found is told through ``recorder``."""
        self._recorder = recorder
        self._watch: Watch | None = None
        self._read = 0
        self._since = 0
        self._recent: deque[Weak] = deque(maxlen=PATIENCE + 1)
        self._leave_arrays: Callable[[], None] = lambda: None
        self.cuts = False

    def arrive(self, batch: Any, samples: int) -> None:
        """Know that the loop is given ``batch``, of which the rank has ``samples``; 0: unknown."""
        held = weakly(batch)
        self._recent.append(held)
        if self._watch is not None:
            self._watch.made(held)
        self._read += 1
        self._since += 1
        turn = self._read & (self._read - 1) == 0
        if turn and 1 < samples <= MOST_SAMPLES:
            found = [t for t in tensors_in(batch) if type(t) is torch.Tensor and t.ndim]
            if alike := [tensor for tensor in found if len(tensor) == samples]:
                self._look(alike, samples, others=len(alike) < len(found))
        elif self._since > PATIENCE:
            self.close()
        else:
            self.rest()

    def _look(self, tensors: list[torch.Tensor], samples: int, others: bool) -> None:
        self._since = 0
        if self._watch is None:
            self._watch = Watch()
            for batch in self._recent:  # read before, and no older than the step
                self._watch.made(batch)
            # Below whatever the cell has put on: that is taken off first.
            _put_on(self._watch, torch._C._len_torch_dispatch_stack())
            self._leave_arrays = look_at_arrays(self._watch.meet_array)
        self._watch.add(tensors, samples)
        self._watch.lost |= others  # rows of something else: atoms, nodes of graphs

    def rest(self) -> None:
        """Look away if all batches that were looked at are done with."""
        if self._watch is not None and self._watch.done:
            self.close()

    def close(self) -> None:
        """Look away for good, or until another batch is to be looked at."""
        watch, self._watch = self._watch, None
        if watch is None:
            return
        self._leave_arrays()
        _take_off(watch)
        if watch.covers_in_part:
            self._recorder.notice("part-of-batch", notices.PART_OF_BATCH)
        elif watch.in_pieces:
            self.cuts = True
        if watch.trained and watch.joined:
            self._recorder.notice("other-rows", notices.OTHER_ROWS)
        if watch.trained and watch.kept.read is not None:
            where = _where(watch.kept.read)
            self._recorder.notice("own-number", notices.OWN_NUMBER.format(where=where))
        if watch.trained and watch.kept.written is not None:
            where = _where(watch.kept.written)
            self._recorder.notice("own-values", notices.OWN_VALUES.format(where=where))

    def look_at(self, roots: Sequence[torch.Tensor], graph: LossGraph, even: bool = False) -> None:
        """Look at what a backward pass begins with.

        ``graph`` is read from its autograd graph; ``even`` says that ranks have as many samples.
        """
        watch = self._watch
        for root in roots if watch is not None else ():
            tag = watch.note(root)  # type: ignore[union-attr]
            if isinstance(tag, Coupled) and not graph.bent:  # else that is said
                self._tell(tag)
            if isinstance(tag, Total) and tag.chosen and "mean" in graph.kinds:
                self._recorder.notice("chosen-mean", notices.CHOSEN_MEAN)
            beside = isinstance(tag, Total) and tag.beside and not graph.penalised
            if beside and graph.kinds == {"sum"} and watch.sees_others(graph):  # type: ignore[union-attr]
                self._recorder.notice("sum-beside", notices.SUM_BESIDE)
            alone = watch.alone == graph.reductions > FEW  # type: ignore[union-attr]
            if alone and graph.adds_up_terms(even):
                self._recorder.notice("by-sample", notices.BY_SAMPLE)
            if graph.by_older:
                self._recorder.notice("old-divisor", notices.OLD_DIVISOR)
            over = watch.over  # type: ignore[union-attr]
            if any(over.get(_key(dims)) is False for dims in graph.taken) or any(
                over.get(_key(dims)) for dims in graph.not_taken
            ):
                self._recorder.notice("time-first", notices.TIME_FIRST)

    def is_old(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is seen to be older than the batches that it is used with."""
        return self._watch is not None and self._watch.kept.is_old(tensor)

    def _tell(self, tag: Coupled) -> None:
        if tag.operation == NORMALISED.operation:
            self._recorder.notice("batch-norm", notices.BATCH_NORM)
            return
        text = notices.COUPLED_BATCH.format(where=_where(tag.line), operation=tag.operation)
        self._recorder.notice("coupled-batch", text)

    def aside(self) -> AbstractContextManager[None]:
        """Look away for a while.

        Not only idly: a mode that is on turns a number in an autograd graph into a float.
        """
        return NOTHING if self._watch is None else _without(self._watch)

    def settle(self, losses: Sequence[torch.Tensor]) -> None:
        """Know that these losses are the global batch's from now on."""
        if self._watch is not None:
            self._watch.forget(losses)

    def alike(self, made: torch.Tensor, of: torch.Tensor) -> None:
        """Know that ``made``, which was made out of sight, has the samples of ``of``."""
        if self._watch is not None and (tag := self._watch.tags.get(of)) is not None:
            self._watch.tags[made] = tag


def _where(line: int) -> str:
    return f"Line {line} of the cell" if line else "The step"


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
        self.kept = Kept()

    def add(self, tensors: list[torch.Tensor], samples: int) -> None:
        """Look at a batch of ``samples`` with these ``tensors``, samples first."""
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

    def forget(self, tensors: Sequence[torch.Tensor]) -> None:
        """Know that these tensors, and all that share their memory, are of no sample any more."""
        memories = {memory_of(tensor) for tensor in tensors}
        for tensor in [t for t in self.tags if t.ndim == 0 and memory_of(t) in memories]:
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

    def _note_reduction(self, func: Any, call: Call) -> None:
        """Remember whether a reduction over some dimensions, the last such, is over samples."""
        tag, ndim = call.tags[0], call.tensors[0].ndim
        if func in REDUCTIONS and isinstance(tag, Rows) and call.named.get("dim"):
            key = _key((ndim, tuple(call.named["dim"])))
            self.over[key] = tag.dim % ndim in key[1]

    def _joins_others(self, func: Any, call: Call) -> bool:
        """Tell whether samples are joined with rows that are older than the step."""
        if func is not CAT:
            return False
        dim = call.named.get("dim", 0)
        pairs = list(zip(call.tensors, call.tags, strict=True))
        along = any(isinstance(tag, Rows) and not (tag.dim - dim) % x.ndim for x, tag in pairs)
        return along and any(tag is None and x.numel() and self.kept.is_old(x) for x, tag in pairs)

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
                if isinstance(tag, One) and not tensor.ndim:
                    self._alone.add(tag.row)
            elif tensor in self.tags:
                del self.tags[tensor]


def _key(reduction: tuple[int, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
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
    return replace(tag, line=line_of_cell(sys._getframe()))


@contextmanager
def _without(watch: Watch) -> Iterator[None]:
    above = _take_off(watch)
    try:
        yield
    finally:
        if above is not None:
            _put_on(watch, above)


def _put_on(watch: Watch, below: int = 0) -> None:
    """Put ``watch`` on the stack of modes, ``below`` so many others."""
    above = [dispatch._pop_mode() for _ in range(below)]
    watch.__enter__()  # type: ignore[no-untyped-call]
    for mode in reversed(above):
        dispatch._push_mode(mode)


def _take_off(watch: Watch) -> int | None:
    """Take ``watch`` from the stack of modes; return how many lay above, None if it was not on."""
    above = []
    while (top := dispatch._get_current_dispatch_mode()) is not None and top is not watch:
        above.append(dispatch._pop_mode())
    if top is watch:
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for mode in reversed(above):
        dispatch._push_mode(mode)
    return len(above) if top is watch else None
