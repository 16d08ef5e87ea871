"""Observes some training steps and reports how their loss depends on the batch."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from nbmgpu.rank.data.batch_tensors import WeakTensors, iter_tensors, weak_tensors
from nbmgpu.rank.loss.graph_path import term_signature
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.reporting.places import place

from .dispatch_mode import SampleTrackingMode, mode_removed, pop_mode, push_mode
from .escaped_values import EscapedValues, storage_id
from .numpy_access import patch_array_access
from .op_findings import OpFindings
from .position_indexing import BY_POSITION, patch_indexing
from .reduction_ops import BATCH_NORM_TAG
from .step_values import StepValues
from .tags import Batched, CrossSample, SampleSum, SingleSample

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_graph import LossGraph
    from nbmgpu.rank.reporting.recorder import Recorder

R = TypeVar("R")

MAX_SAMPLES = 4096
"""Samples of a shard up to which they are tracked."""

MAX_READ_AHEAD = 8
"""Batches that may be read before the observed one is used."""

MAX_TERMS_BY_CHANCE = 1
"""Number of terms that a loss may share with the samples of a shard by chance."""

SPLIT_BY_COUNT = {"chunk", "tensor_split", "array_split"}
"""Functions that split a batch into a given number of pieces, whatever its size."""

NO_CONTEXT: AbstractContextManager[None] = nullcontext()


def is_observed(number: int) -> bool:
    """Return whether batch ``number``, from 1, is observed: powers of 2, and round numbers.

    Loops print and evaluate in each 5th, 10th, 25th, 50th, 100th, ... step.
    """
    return number & (number - 1) == 0 or str(number).rstrip("0") in ("1", "2", "5", "25")


class BatchDependenceDetector:
    """Tracks the samples of some batches through their training steps; see ``is_observed``.

    Attributes:
        numbers: digests of what steps decide by, and of the numbers that they compute with after
            they have converted tensors to arrays or lists, by the number of the batch.
        step_values: what variables of the cell held after the last observed step.
        splits_batches: whether a step was seen that trains on a batch in pieces, one backward pass
            each.
    """

    def __init__(
        self, recorder: Recorder, buffers: Callable[[], Iterable[torch.Tensor]] = tuple
    ) -> None:
        """Start without observing anything.

        Args:
            recorder: gets a notice for each finding.
            buffers: returns the buffers that ranks average after each backward pass.
        """
        self._recorder = recorder
        self._buffers = buffers
        self._mode: SampleTrackingMode | None = None
        self._batches_read = 0
        self._read_since = 0
        self._recent: deque[WeakTensors] = deque(maxlen=MAX_READ_AHEAD + 1)
        self._patches: list[Callable[[], None]] = []
        self.step_values = StepValues()
        self.splits_batches = False
        self.numbers: dict[str, str] = {}

    def add_batch(self, batch: Any, samples: int, global_batch_size: int) -> None:
        """Register a batch that the loop gets, and observe its step if its number is one of those.

        Args:
            batch: the rank's shard.
            samples: samples in it, 0 if unknown.
            global_batch_size: samples in the global batch.
        """
        held = weak_tensors(batch)
        self._recent.append(held)
        if self._mode is not None:
            self._mode.register_batch(held)
        self._batches_read += 1
        self._read_since += 1
        if is_observed(self._batches_read) and 0 < samples <= MAX_SAMPLES and global_batch_size > 1:
            found = [t for t in iter_tensors(batch) if type(t) is torch.Tensor and t.ndim]
            if batched := [tensor for tensor in found if len(tensor) == samples]:
                has_others = len(batched) < len(found)
                self._observe(batched, samples, global_batch_size, has_others)
        elif self._read_since > MAX_READ_AHEAD:
            self.close()
        else:
            self.stop_if_done()

    def _observe(
        self,
        tensors: list[torch.Tensor],
        samples: int,
        global_batch_size: int,
        has_others: bool,
    ) -> None:
        self._read_since = 0
        if self._mode is None:
            self._mode = SampleTrackingMode()
            for batch in self._recent:  # read earlier, but no older than the step
                self._mode.register_batch(batch)
            # Below the modes that the cell has pushed: the cell pops them first.
            push_mode(self._mode, torch._C._len_torch_dispatch_stack())
            exported, imported = self._mode.on_array_export, self._mode.on_array_import
            self._patches = [patch_array_access(exported, imported)]
        if samples == 1 and len(self._patches) == 1:
            self._patches.append(patch_indexing(self._mode.on_indexing))
        self._mode.escaped.buffer_storages = set(map(storage_id, self._buffers()))
        self._mode.add_batch(tensors, samples, global_batch_size, self._batches_read)
        self._mode.lost |= has_others  # tensors with other rows: atoms, nodes of graphs

    def stop_if_done(self) -> None:
        """Stop observing if all observed batches have been trained on."""
        if self._mode is not None and self._mode.trained.done:
            self.close()

    def close(self) -> None:
        """Stop observing until the next batch that is to be observed; report findings."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        for remove in self._patches:
            remove()
        pop_mode(mode)
        trained, findings = mode.trained, mode.findings
        if trained.is_subset:
            self._recorder.notice("part-of-batch", notices.PART_OF_BATCH)
        elif trained.in_pieces or (trained.all_tracked and findings.is_one_piece):
            self.splits_batches = True
        if trained.any:
            self.step_values.observe(mode.tag_in_any_batch)
            self.numbers |= {str(n): made.hexdigest() for n, made in mode.numbers.items()}
            self._report_findings(findings)
            self._report_escaped(mode.escaped)
            if (line := mode.branches.find_line(trained.shard_size)) is not None:
                text = notices.LOCAL_BRANCH.format(where=place(line))
                self._recorder.notice("local-branch", text)

    def _report_findings(self, findings: OpFindings) -> None:
        if findings.joins_older_rows:
            self._recorder.notice("older-samples", notices.OLDER_SAMPLES)
        if findings.reshape_line is not None:
            where = place(findings.reshape_line)
            text = notices.GLOBAL_BATCH_SHAPE.format(where=where, whole=findings.global_batch_size)
            self._recorder.notice("global-batch-shape", text)

    def _report_escaped(self, escaped: EscapedValues) -> None:
        if escaped.read_line is not None:
            where = place(escaped.read_line)
            self._recorder.notice("local-value-read", notices.LOCAL_VALUE_READ.format(where=where))
        if escaped.averaged_line is not None:
            where = place(escaped.averaged_line)
            self._recorder.notice("averaged-buffer", notices.AVERAGED_BUFFER.format(where=where))
        if escaped.written_line is not None:
            where = place(escaped.written_line)
            self._recorder.notice(
                "local-values-written", notices.LOCAL_VALUES_WRITTEN.format(where=where)
            )

    def check_losses(
        self,
        roots: Sequence[torch.Tensor],
        graph: LossGraph,
        even: bool = False,
        single: bool = False,
    ) -> None:
        """Check the tensors that a backward pass starts from.

        Args:
            roots: the tensors.
            graph: what was read from their autograd graph.
            even: whether all ranks have equally many samples.
            single: whether no rank has more than one sample.
        """
        mode = self._mode
        if mode is None:
            return
        for root in roots:
            tag = mode.add_loss(root)
            if (
                isinstance(tag, CrossSample) and not graph.is_nonlinear
            ):  # else another notice covers it
                self._report_cross_sample(tag)
            if isinstance(tag, SampleSum):
                self._check_sum(tag, graph, mode)
            picked = tag is not None and BY_POSITION in tag.sources
            # Not reduced over samples, or over those that were picked.
            if single and (picked or isinstance(tag, SingleSample | Batched)):
                self._recorder.notice("one-sample", notices.ONE_SAMPLE)
            scalar_per_sample = mode.samples_with_scalar == len(graph.terms) > MAX_TERMS_BY_CHANCE
            if scalar_per_sample and graph.sums_terms(even):
                self._recorder.notice("single-sample-losses", notices.SINGLE_SAMPLE_LOSSES)
            if graph.divisions.by_older_tensor:
                self._recorder.notice("old-divisor", notices.OLD_DIVISOR)
            if graph.partial_reductions.contradict(mode.findings.reduces_batch_dim):
                self._recorder.notice("other-dimension-first", notices.OTHER_DIMENSION_FIRST)

    def _check_sum(self, tag: SampleSum, graph: LossGraph, mode: SampleTrackingMode) -> None:
        if tag.mean_of_subset and "mean" in graph.kinds:
            self._recorder.notice("mean-of-subset", notices.MEAN_OF_SUBSET)
        if (
            tag.adds_subsets
            and len({term_signature(source, path) for source, path in graph.terms}) > 1
        ):
            self._recorder.notice("position-in-batch", notices.POSITION_IN_BATCH)
        other_terms = tag.has_other_terms and not graph.has_penalty
        if other_terms and graph.kinds == {"sum"} and mode.reduces_other_rows(graph):
            self._recorder.notice("sum-with-fixed-term", notices.SUM_WITH_FIXED_TERM)

    def predates_step(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is known to be older than the batches that it is used with."""
        return self._mode is not None and self._mode.escaped.predates_step(tensor)

    def _report_cross_sample(self, tag: CrossSample) -> None:
        if tag.operation == BATCH_NORM_TAG.operation:
            self._recorder.notice("batch-norm", notices.BATCH_NORM)
            return
        text = notices.CROSS_SAMPLE.format(where=place(tag.line), operation=tag.operation)
        self._recorder.notice("cross-sample", text)

    def paused(self) -> AbstractContextManager[None]:
        """Stop observing for a while.

        The mode is removed, not only idle: an active mode turns a number in an autograd graph
        into a float.
        """
        return NO_CONTEXT if self._mode is None else mode_removed(self._mode)

    def unobserved(self, function: Callable[..., R]) -> Callable[..., R]:
        """Return ``function``, of which nothing is taken for the cell's."""

        @functools.wraps(function)
        def call(*args: Any) -> R:
            with self.paused():
                return function(*args)

        return call

    def mark_as_global(self, losses: Sequence[torch.Tensor]) -> None:
        """Register losses that have the value of the global batch from now on."""
        if self._mode is not None:
            self._mode.mark_as_global(losses)

    def copy_tag(self, made: torch.Tensor, of: torch.Tensor) -> None:
        """Give ``made``, computed unobserved with the same first dimensions, the tag of ``of``."""
        if self._mode is not None and (tag := self._mode.tags.get(of)) is not None:
            if isinstance(tag, Batched):
                tag = replace(tag, dim=tag.dim + of.ndim - made.ndim)
            self._mode.tags[made] = tag
