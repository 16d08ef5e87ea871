"""A trial of a block: whether slices of the sequence have the outputs and gradients of the whole.

They do not where positions meet outside of ``scaled_dot_product_attention``: in a convolution or a
recurrent network over the sequence, in a position bias made from the length, or in batch
normalization.  The trial runs the block, or a copy of it, on whole sequences and on slices, and so
again with other numbers in one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.environment import random_state
from nbmgpu.errors import RankError
from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.host_checks import host_checks
from nbmgpu.strategies.module_copy import (
    ModuleState,
    copy_for_trial,
    hooks_of_cell,
    kept_module_state,
)
from nbmgpu.strategies.outcome import Outcome, detached_copy, versions_of, without_graph
from nbmgpu.strategies.recorded_outputs import recorded_inside_layers
from nbmgpu.strategies.tensor_reads import ReadRecorder, TooManyReadsError
from nbmgpu.strategies.trial_factors import multiplied, trial_factors

from .region import Exchange, NotSplittableError, Region
from .sequence_tensor import whole_of
from .slices import run_on_slices, split_arguments


@dataclass(frozen=True, eq=False)
class Subject:
    """What a trial calls.

    Attributes:
        module: the block, or a copy.
        call: its forward function.
        parameters: the leaves of autograd's graph among its parameters.
    """

    module: nn.Module
    call: Callable[..., Any]
    parameters: list[Tensor]

    def inputs(self, leaves: Iterable[Any]) -> list[Tensor]:
        """Return what a call with these ``leaves`` may have gradients to."""
        return [*(x for x in leaves if isinstance(x, Tensor)), *self.parameters]


Subjects = Callable[[nn.Module, Callable[..., Any]], AbstractContextManager[Subject]]
"""Returns the subject for a block and its forward function, while the trial runs."""


@contextmanager
def copied(module: nn.Module, call: Callable[..., Any]) -> Iterator[Subject]:
    """Try a copy of a block."""
    copy = copy_for_trial(module)
    yield Subject(copy, type(copy).forward.__get__(copy), list(copy.parameters()))


@dataclass(frozen=True)
class Splitting:
    """How the calls of a block with certain arguments are split.

    Attributes:
        dim: dimension that is split in its arguments; None if it runs on whole tensors.
        exchange: how ranks share attention; None if the batch is split.
        arguments, outputs: which leaves of its arguments and its output are slices.
        operations: whether each attention and dropout acts on slices; see ``Region``.
        reason: why it runs on whole tensors.
    """

    dim: int | None
    exchange: Exchange | None = None
    arguments: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()
    operations: tuple[bool, ...] = ()
    reason: str = ""


class BlockTrial:
    """Tries one call of a block."""

    def __init__(
        self,
        subject: Subject,
        leaves: list[Any],
        spec: Any,
        before: ReadRecorder | None = None,
    ) -> None:
        """Initialize the trial.

        Args:
            subject: the block.
            leaves, spec: the arguments of the call.
            before: what calls with other numbers have read.
        """
        self._reads = ReadRecorder(before)
        self._subject = subject
        self._leaves = [detached_copy(whole_of(leaf)) for leaf in leaves]
        self._spec = spec

    def run(self, candidates: Sequence[Region]) -> Splitting:
        """Return how the call can be split: by the first of ``candidates`` that is right.

        All ranks return the same; collective.
        """
        module = self._subject.module
        before, versions = ModuleState(module), versions_of(self._leaves)
        with outside_of_checkpoints(), random_state.kept():
            whole = self._call()
        if not before.is_that_of(module):
            return Splitting(None, reason="a call changes its buffers or attributes")
        if versions != versions_of(self._leaves):
            return Splitting(None, reason="it changes its arguments in place")
        for region in candidates:
            splitting = self._try(region, whole)
            if splitting.dim is not None:
                splitting = self._with_factors(region, splitting)
            if splitting.dim is not None or region is candidates[-1]:
                return splitting
        return Splitting(None, reason="it is called with too few positions")

    def _with_factors(self, region: Region, splitting: Splitting) -> Splitting:
        """Return ``splitting`` if it is right where a slice is multiplied; else why it is not."""
        last = region.length - region.sizes[-1]
        for factor in trial_factors(self._reads):
            leaves = [
                multiplied(leaf, region.dim, last, factor) if is_split else leaf
                for leaf, is_split in zip(self._leaves, splitting.arguments, strict=True)
            ]
            trial = BlockTrial(self._subject, leaves, self._spec, self._reads)
            with kept_module_state(self._subject.module), host_checks(leaves):
                try:
                    with outside_of_checkpoints(), random_state.kept():
                        whole = trial._call()
                except TooManyReadsError as error:
                    return Splitting(None, reason=str(error))
                except RankError:
                    raise
                except Exception:  # here and on all ranks: it does not take such numbers
                    continue
                found = trial._try(region.anew(), whole) if whole.is_finite() else splitting
            if found.dim is None:
                return found
        return splitting

    def _try(self, region: Region, whole: Outcome) -> Splitting:
        """Return how a call is split in a region, or why it cannot."""
        reason, splitting = "", Splitting(None)
        try:
            with outside_of_checkpoints(), random_state.kept():
                sliced, splitting = self._call_on_slices(region)
            if not sliced.is_that_of(whole):
                reason = "its positions depend on each other outside of attention"
        except NotSplittableError as error:
            reason = str(error)
        except RankError:  # no rank can go on
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        failed = torch.tensor([bool(reason)], dtype=torch.int32)
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=region.group)
        if failed:
            reason = reason or "it fails on the slice of another rank"
            return Splitting(None, reason=reason)
        return splitting

    def _call(self) -> Outcome:
        """Call the block on whole tensors."""
        leaves = [without_graph(x) for x in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        outputs, spec = tree_flatten(self._recorded_call(*args, **kwargs))
        return Outcome.of(outputs, spec, self._subject.inputs(leaves))

    def _recorded_call(self, *args: Any, **kwargs: Any) -> Any:
        with self._reads:
            return self._subject.call(*args, **kwargs)

    def _call_on_slices(self, region: Region) -> tuple[Outcome, Splitting]:
        """Call the block on slices, and gather its outputs."""
        leaves = [without_graph(x) for x in self._leaves]
        arguments, subject = split_arguments(leaves, region), self._subject
        inputs = subject.inputs(leaves)
        try:
            parts, spec = run_on_slices(
                subject.module, self._recorded_call, region, (leaves, self._spec), arguments
            )
        except RankError:
            raise
        except Exception:
            with suppress(NotSplittableError):
                region.check_gradients(None, inputs)  # which the others wait in
            raise
        region.check_gradients(parts, inputs)
        are_slices = tuple(map(region.is_slice, parts))
        outputs = [
            region.gather(x, region.dim) if is_slice else x
            for x, is_slice in zip(parts, are_slices, strict=True)
        ]
        outcome = Outcome.of(outputs, spec, inputs)
        operations = tuple(region.found)
        return outcome, Splitting(region.dim, region.exchange, arguments, are_slices, operations)


def obstacle(module: nn.Module, leaves: list[Any]) -> str:
    """Return why a call of a block cannot be tried; empty if it can."""
    if any(map(hooks_of_cell, list(module.modules())[1:])):
        return "it has hooks on modules inside, which would see slices"
    if recorded := recorded_inside_layers():
        return f"{' and '.join(recorded)} are recorded inside of it"
    for leaf in leaves:
        if not isinstance(leaf, Tensor | bool | int | float | str | slice | type(None)):
            return f"it is called with a {type(leaf).__name__}, which it may change"
    return ""
