"""A trial of a module: whether this rank's samples have the outputs and gradients of the batch.

They do not where samples interact, other than in batch normalization: in a loss, in other
statistics of the batch, in a queue.  The trial runs a copy of the module on the whole batch and on
each rank's samples, and compares outputs, gradients, what the call has changed, and the random
state after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from nbmgpu.environment import random_state
from nbmgpu.errors import RankError
from nbmgpu.strategies.collectives import all_reduce
from nbmgpu.strategies.host_checks import host_checks
from nbmgpu.strategies.module_copy import kept_module_state
from nbmgpu.strategies.outcome import Outcome, detached_copy, versions_of, without_graph
from nbmgpu.strategies.sequence.region import NotSplittableError
from nbmgpu.strategies.sequence.sequence_tensor import whole_of
from nbmgpu.strategies.sequence.trial import Subject
from nbmgpu.strategies.tensor_reads import ReadRecorder, TooManyReadsError

from .batch_norm import BatchStatistics
from .draws import DrawPlan, DrawRecorder, DrawsOfBatch
from .perturbation import (
    REPLACEMENTS,
    depends_on_others,
    embeddings_replaced,
    replace_others,
)
from .precision import EPSILON, widen, widened
from .region import BatchRegion, SampleDim
from .samples import (
    ModuleChanges,
    call_on_samples,
    foreign_leaves,
    has_same_bits,
    split_arguments,
    with_share,
)

HARD = 1e6
"""What a rank adds to the failures that cannot be rounding; 1 for a difference of numbers."""


@dataclass(frozen=True)
class Splitting:
    """How the calls of a module with certain arguments are split.

    Attributes:
        dim: dimension of samples in its arguments; None if it runs on the whole batch.
        length_of: index of an argument that has the samples.
        arguments: which leaves of its arguments are split.
        outputs: where the samples are in each leaf of its output.
        draws: its random numbers.
        reason: why it runs on the whole batch.
        may_be_rounding: whether the reason may be that rounding was amplified.
    """

    dim: int | None
    length_of: int = 0
    arguments: tuple[bool, ...] = ()
    outputs: tuple[SampleDim | None, ...] = ()
    draws: DrawPlan = field(default_factory=DrawPlan)
    reason: str = ""
    may_be_rounding: bool = False


@dataclass(frozen=True)
class _Call:
    """What a call in a trial leaves."""

    outcome: Outcome
    changes: ModuleChanges
    random: random_state.RandomState

    def difference(self, other: _Call) -> str:
        """Return how the call differs from another one; empty if it does not."""
        if not self.outcome.is_that_of(other.outcome, EPSILON):
            return "its samples depend on each other"
        if not self.changes.equal(other.changes):
            return "a call changes what it holds in another way"
        return "" if self.random == other.random else "it draws other random numbers"


class BatchTrial:
    """Tries one call of a module."""

    def __init__(
        self,
        subject: Subject,
        leaves: list[Any],
        spec: Any,
        group: ProcessGroup,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialize the trial.

        Args:
            subject: a copy of the module.
            leaves, spec: the arguments of the call.
            group: the ranks, in the order of their samples.
            dtype: the least precision of the trial.
        """
        self._subject = subject
        widen(subject.module, dtype)
        self._leaves = [widened(detached_copy(whole_of(leaf)), dtype) for leaf in leaves]
        self._device = next((x.device.type for x in leaves if isinstance(x, Tensor)), "cpu")
        self._spec = spec
        self._group = group
        self._reads = ReadRecorder()
        self._statistics = BatchStatistics()

    def run(self, candidates: Sequence[tuple[int, int]]) -> Splitting:
        """Return how the call can be split; all ranks return the same.

        Args:
            candidates: indices of arguments and dimensions that may be the samples, in the order in
                which they are tried.
        """
        recorder, versions = DrawRecorder(), versions_of(self._leaves)
        try:
            with self._kept(), self._reads, self._statistics.recording():
                before = ModuleChanges(self._subject.module)
                whole = self._call(self._leaves_for_call(), recorder)
        except Exception as error:  # so it will in the cell
            return Splitting(None, reason=_first_line(error))
        if versions != versions_of(self._leaves):
            return Splitting(None, reason="it changes its arguments in place")
        if whole.changes.decided_by_calls(before):
            return Splitting(None, reason="a call changes its attributes")
        found: list[Splitting] = []
        for index, dim in candidates:
            found.append(self._try(index, dim, whole, recorder))
            if found[-1].dim is not None:
                return found[-1]
        return found[0]  # whose dimension are most likely the samples

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep the random state, and what the copy holds, for a call in the body."""
        kept = random_state.kept(), kept_module_state(self._subject.module)
        with kept[0], kept[1], torch.autocast(self._device, enabled=False):
            yield

    def _try(self, index: int, dim: int, whole: _Call, recorder: DrawRecorder) -> Splitting:
        """Return how a call is split along a dimension, or why it cannot."""
        status = _Status(self._group)
        reason, splitting, compared = "", Splitting(None), False
        try:
            with self._kept():
                own, splitting = self._call_on_samples(index, dim, whole, recorder, status)
            reason, compared = own.difference(whole), True
        except NotSplittableError as error:
            reason = str(error)
        except RankError:  # no rank can go on
            raise
        except Exception as error:
            reason = _first_line(error)
        if status.others_failed:
            return Splitting(None, reason=reason)
        failures = status.sum(bool(reason) if compared else HARD)
        if not failures:
            reason = self._dependence(splitting, whole)
            if not status.sum(bool(reason)):
                return splitting
        reason = reason or "it fails on the samples of another rank"
        return Splitting(None, reason=reason, may_be_rounding=failures < HARD)

    def _dependence(self, splitting: Splitting, whole: _Call) -> str:
        """Return how this rank's samples depend on others, by replacing those; else nothing.

        Other ranks do not take part.
        """
        assert splitting.dim is not None
        length = self._leaves[splitting.length_of].shape[splitting.dim]
        region = BatchRegion(splitting.dim, length, 0, self._group, None)
        for value in REPLACEMENTS:
            leaves = [
                replace_others(leaf, region, is_split, value)
                for leaf, is_split in zip(self._leaves_for_call(), splitting.arguments, strict=True)
            ]
            args, kwargs = tree_unflatten(leaves, self._spec)
            reads = ReadRecorder(self._reads)
            module = self._subject.module
            try:
                with (
                    self._kept(),
                    reads,
                    host_checks(leaves),
                    self._statistics.repeated(),
                    embeddings_replaced(module, region, value),
                ):
                    outputs = tree_leaves(self._subject.call(*args, **kwargs))
            except TooManyReadsError:
                return "it reads numbers that depend on all samples"
            except Exception:
                continue  # it does not take such numbers
            if depends_on_others(outputs, whole.outcome.outputs, splitting.outputs, region):
                return "its samples depend on each other"
            if reads.found != self._reads.found:
                return "it reads numbers that depend on all samples"
        return ""

    def _call(self, leaves: list[Any], recorder: DrawRecorder) -> _Call:
        """Call the module on the whole batch.

        Raises:
            NotSplittableError: it uses parameters that are not its own.
        """
        args, kwargs = tree_unflatten(leaves, self._spec)
        with recorder.recording():
            outputs, spec = tree_flatten(self._subject.call(*args, **kwargs))
        inputs = self._subject.inputs(leaves)
        if foreign_leaves(outputs, inputs):
            raise NotSplittableError("it uses parameters that are not its own")
        return self._ended(outputs, spec, inputs)

    def _ended(self, outputs: list[Any], spec: Any, inputs: list[Tensor]) -> _Call:
        random = random_state.capture()
        changes = ModuleChanges(self._subject.module)
        return _Call(Outcome.of(outputs, spec, inputs), changes, random)

    def _call_on_samples(
        self, index: int, dim: int, whole: _Call, recorder: DrawRecorder, status: _Status
    ) -> tuple[_Call, Splitting]:
        """Call the module on this rank's samples, and gather its outputs."""
        leaves = self._leaves_for_call()
        region = BatchRegion(dim, leaves[index].shape[dim], 0, self._group, None)
        region.before_collective = status.check
        arguments = split_arguments(leaves, region)
        functions = recorder.functions
        plan = DrawPlan(None if functions is None else frozenset(functions))
        if recorder.found:
            region.draws = DrawsOfBatch(region, plan, recorder.found)
        parts, spec = call_on_samples(self._subject, region, (leaves, self._spec), arguments)
        if region.draws is not None:
            if len(region.draws.places) != len(recorder.found):
                raise NotSplittableError("it draws fewer random numbers for some of the samples")
            operators = tuple(draw.operator for draw in recorder.found)
            plan = DrawPlan(plan.functions, operators, tuple(region.draws.places))
        outputs, found = _outputs(parts, whole.outcome.outputs, region)
        inputs = self._subject.inputs(leaves)
        status.check()
        region.check_gradients(outputs, inputs)
        outputs = [
            region.gather_samples(x, where) if where else with_share(x, self._group)
            for x, where in zip(outputs, found, strict=True)
        ]
        call = self._ended(outputs, spec, inputs)
        return call, Splitting(dim, index, arguments, found, plan)

    def _leaves_for_call(self) -> list[Any]:
        return [without_graph(x) for x in self._leaves]


class _Status:
    """Lets ranks in a trial know that another one has failed, before they wait for it.

    Each rank takes part in a sum before each collective of the call, and in one at its end.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.others_failed = False

    def check(self) -> None:
        """Check before a collective; raises NotSplittableError if another rank has failed."""
        if self.sum(0):
            self.others_failed = True
            raise NotSplittableError("it fails on the samples of another rank")

    def sum(self, here: float) -> float:
        """Return the sum of a number over the ranks; 0 is that nothing has failed."""
        total = torch.tensor([float(here)])
        all_reduce(total, self._group).wait()
        return float(total)


def _outputs(
    parts: list[Any], whole: list[Any], region: BatchRegion
) -> tuple[list[Any], tuple[SampleDim | None, ...]]:
    """Return the leaves of an output, and where the samples are in each."""
    if len(parts) != len(whole):
        raise NotSplittableError("its output has another structure for some of the samples")
    found: list[SampleDim | None] = []
    for part, of_batch in zip(parts, whole, strict=True):
        tensors = isinstance(part, Tensor) and isinstance(of_batch, Tensor)
        found.append(region.find(part.shape, of_batch.shape) if tensors else None)
        # The mean loss of some samples may be near that of all, but never the same.
        if tensors and found[-1] is None and not has_same_bits(part, of_batch):
            raise NotSplittableError("a part of its output is of all samples together")
    return parts, tuple(found)


def _first_line(error: Exception) -> str:
    if isinstance(error, NotSplittableError):
        return str(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]
