"""Batches that are looked at on their way through a step, and what people are told of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.rank.data.current_batch import Weak, tensors_in, weakly
from nbmgpu.rank.loss.graph_path import made_by
from nbmgpu.rank.reporting import notices

from .dispatch_mode import Watch, dims_of, put_on, take_off, without
from .kept_values import memory_of
from .numpy_access import look_at_arrays
from .reduction_ops import NORMALISED
from .row_tags import Coupled, Total

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph
    from nbmgpu.rank.reporting.recorder import Recorder

MOST_SAMPLES = 4096
"""Samples of a share up to which their places are kept."""

PATIENCE = 8
"""Batches that may be read before the one looked at is used."""

FEW = 1
"""Terms that a loss of a whole share may have, and a share as many samples, by chance."""

SPLIT_BY_COUNT = {"chunk", "tensor_split", "array_split"}
"""Names by which code cuts a batch into so many pieces, whatever its size."""

NOTHING: AbstractContextManager[None] = nullcontext()


class BatchDependenceDetector:
    """Follows the samples of the batches numbered 1, 2, 4, 8, 16, ... through their steps.

    ``cuts`` tells that steps were seen which train on a batch in pieces, each by itself.
    """

    def __init__(
        self, recorder: Recorder, buffers: Callable[[], Iterable[torch.Tensor]] = tuple
    ) -> None:
        """Have looked at nothing; what is found is told through ``recorder``.

        ``buffers`` gives those that ranks average after each backward pass.
        """
        self._recorder = recorder
        self._buffers = buffers
        self._watch: Watch | None = None
        self._read = 0
        self._since = 0
        self._recent: deque[Weak] = deque(maxlen=PATIENCE + 1)
        self._leave_arrays: Callable[[], None] = lambda: None
        self.splits_batches = False

    def add_batch(self, batch: Any, samples: int, whole: int) -> None:
        """Know that the loop is given ``batch``: ``samples`` of ``whole``, or 0 where unknown."""
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
                self._look(alike, samples, whole, others=len(alike) < len(found))
        elif self._since > PATIENCE:
            self.close()
        else:
            self.stop_if_done()

    def _look(self, tensors: list[torch.Tensor], samples: int, whole: int, others: bool) -> None:
        self._since = 0
        if self._watch is None:
            self._watch = Watch()
            for batch in self._recent:  # read before, and no older than the step
                self._watch.made(batch)
            # Below whatever the cell has put on: that is taken off first.
            put_on(self._watch, torch._C._len_torch_dispatch_stack())
            self._leave_arrays = look_at_arrays(self._watch.meet_array)
        self._watch.kept.buffers = set(map(memory_of, self._buffers()))
        self._watch.add(tensors, samples, whole)
        self._watch.lost |= others  # rows of something else: atoms, nodes of graphs

    def stop_if_done(self) -> None:
        """Look away if all batches that were looked at are done with."""
        if self._watch is not None and self._watch.done:
            self.close()

    def close(self) -> None:
        """Look away for good, or until another batch is to be looked at."""
        watch, self._watch = self._watch, None
        if watch is None:
            return
        self._leave_arrays()
        take_off(watch)
        if watch.covers_in_part:
            self._recorder.notice("part-of-batch", notices.PART_OF_BATCH)
        elif watch.in_pieces:
            self.splits_batches = True
        if watch.trained and watch.joined:
            self._recorder.notice("other-rows", notices.OTHER_ROWS)
        if watch.trained and watch.shaped is not None:
            where = _where(watch.shaped)
            text = notices.SHAPED_BY_WHOLE.format(where=where, whole=watch.whole)
            self._recorder.notice("shaped-by-whole", text)
        if watch.trained and watch.kept.read is not None:
            where = _where(watch.kept.read)
            self._recorder.notice("own-number", notices.OWN_NUMBER.format(where=where))
        if watch.trained and watch.kept.averaged is not None:
            where = _where(watch.kept.averaged)
            self._recorder.notice("averaged-buffer", notices.AVERAGED_BUFFER.format(where=where))
        if watch.trained and watch.kept.written is not None:
            where = _where(watch.kept.written)
            self._recorder.notice("own-values", notices.OWN_VALUES.format(where=where))

    def check_losses(
        self, roots: Sequence[torch.Tensor], graph: LossGraph, even: bool = False
    ) -> None:
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
            apart = isinstance(tag, Total) and tag.apart
            if apart and len({made_by(source, path) for source, path in graph.terms}) > 1:
                self._recorder.notice("by-place", notices.BY_PLACE)
            beside = isinstance(tag, Total) and tag.beside and not graph.penalised
            if beside and graph.kinds == {"sum"} and watch.sees_others(graph):  # type: ignore[union-attr]
                self._recorder.notice("sum-beside", notices.SUM_BESIDE)
            alone = watch.alone == graph.reductions > FEW  # type: ignore[union-attr]
            if alone and graph.adds_up_terms(even):
                self._recorder.notice("by-sample", notices.BY_SAMPLE)
            if graph.by_older:
                self._recorder.notice("old-divisor", notices.OLD_DIVISOR)
            over = watch.over  # type: ignore[union-attr]
            if any(over.get(dims_of(dims)) is False for dims in graph.taken) or any(
                over.get(dims_of(dims)) for dims in graph.not_taken
            ):
                self._recorder.notice("time-first", notices.TIME_FIRST)

    def predates_step(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is seen to be older than the batches that it is used with."""
        return self._watch is not None and self._watch.kept.predates_step(tensor)

    def _tell(self, tag: Coupled) -> None:
        if tag.operation == NORMALISED.operation:
            self._recorder.notice("batch-norm", notices.BATCH_NORM)
            return
        text = notices.COUPLED_BATCH.format(where=_where(tag.line), operation=tag.operation)
        self._recorder.notice("coupled-batch", text)

    def paused(self) -> AbstractContextManager[None]:
        """Look away for a while.

        Not only idly: a mode that is on turns a number in an autograd graph into a float.
        """
        return NOTHING if self._watch is None else without(self._watch)

    def mark_as_global(self, losses: Sequence[torch.Tensor]) -> None:
        """Know that these losses are the global batch's from now on."""
        if self._watch is not None:
            self._watch.mark_as_global(losses)

    def copy_tag(self, made: torch.Tensor, of: torch.Tensor) -> None:
        """Know that ``made``, which was made out of sight, has the samples of ``of``."""
        if self._watch is not None and (tag := self._watch.tags.get(of)) is not None:
            self._watch.tags[made] = tag


def _where(line: int) -> str:
    return f"Line {line} of the cell" if line else "The step"
