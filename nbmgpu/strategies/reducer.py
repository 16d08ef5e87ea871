"""Reduces gradients in buckets while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbmgpu.errors import StrategyError, format_message

from . import all_reduce
from .base import Backward, Unit
from .buckets import Bucket, make_buckets
from .replication import RunningStatistics
from .scalars import Scalar, nonzero_or_one
from .trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients are reduced.

    Attributes:
        views: gradients are views of the buckets.
        static: every pass uses the same parameters.
        comm_dtype: dtype in which gradients are communicated; None for their own.
        group: ranks that average their gradients; None for all.
    """

    views: bool = False
    static: bool = False
    comm_dtype: torch.dtype | None = None
    group: ProcessGroup | None = None


class Reducer:
    """Averages the gradients of one unit.

    Every rank launches every bucket once per backward pass, in the same order, even if it has no
    gradients for it; so ranks need not agree beforehand on which parameters are used.

    Where no bucket is launched before the end, gradients are compared with those before the pass.
    A hook on each parameter would detect the same, and takes a tenth of a small model's step.
    """

    def __init__(
        self, unit: Unit, overlap: bool = True, options: ReducerOptions | None = None
    ) -> None:
        """Reduce for ``unit``; with ``overlap``, buckets are launched as soon as they are full."""
        self.unit = unit
        self.options = options or ReducerOptions()
        self.trainable = Trainable(unit)
        self.parameters = [p for p in self.trainable.parameters if p.requires_grad]
        self.flag = {id(p): i for i, p in enumerate(self.parameters)}
        self.buckets = make_buckets(self.parameters, self.options.comm_dtype)
        self.bucket_of = {id(p): b for b in self.buckets for p in b.parameters}
        self.index_in_bucket = {id(p): i for b in self.buckets for i, p in enumerate(b.parameters)}
        self.overlap = overlap and len(self.buckets) > 1
        self.hooks: dict[int, Any] = {}
        if self.overlap or self.options.views:
            self._hook()
        self.before: list[tuple[Tensor | None, int]] = []
        self.statistics = RunningStatistics(unit, self.options.group)
        self.backward: Backward | None = None
        self.used: set[int] = set()
        self.reached = False
        self.late: list[Bucket] = []
        self.static_used: set[int] | None = None
        self.can_be_view: set[int] = set()

    def begin(self, backward: Backward) -> None:
        """Prepare for the gradients of a backward pass."""
        self.backward = backward
        self.used.clear()
        self.reached = False
        self.late.clear()
        for bucket in self.buckets:
            bucket.reset(waits=self.overlap)
        if self.options.views:
            self._find_possible_views()
        if not self.hooks and any(p._post_accumulate_grad_hooks for p in self.parameters):
            self._hook()  # hooks of the cell may remove gradients as they arrive
        if not self.hooks:
            self.before = [_version(p) for p in self.parameters]

    def _hook(self) -> None:
        for parameter in self.parameters:
            handle = parameter.register_post_accumulate_grad_hook(self._on_gradient)
            self.hooks[id(parameter)] = handle

    def _find_possible_views(self) -> None:
        """Find the gradients that may be views: not those that the cell has assigned itself."""
        self.can_be_view.clear()
        for bucket in self.buckets:
            bucket.reallocate_if_referenced()
            for view, parameter in zip(bucket.views, bucket.parameters, strict=True):
                if parameter.grad is None or parameter.grad is view:
                    self.can_be_view.add(id(parameter))

    def _make_view(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        if bucket.work is not None:
            what = "A gradient arrived twice in one backward pass, the second time too late"
            allowed = "A reentrant checkpoint does so, and --bucket-views cannot separate the two"
            raise StrategyError(format_message(what, allowed, "%%mgpu without --bucket-views"))
        grad = parameter.grad
        plain = grad is not None and not grad.is_sparse and not grad.requires_grad
        if plain and id(parameter) in self.can_be_view:
            bucket.make_gradient_view(self.index_in_bucket[id(parameter)])

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self.backward is None:
            return
        bucket = self.bucket_of[id(parameter)]
        self.reached = True
        if parameter.grad is not None:  # a hook of the cell may have removed it
            self.used.add(id(parameter))
        if self.options.views:
            self._make_view(bucket, parameter)
        if bucket.work is not None:  # a reentrant checkpoint adds to a gradient twice
            self.late.append(bucket)
        bucket.waiting.discard(id(parameter))
        if self.overlap:
            for ready in self.buckets[:-1]:  # in order, as on all ranks
                if ready.waiting:
                    break
                if ready.work is None:
                    with torch.no_grad():
                        ready.launch(self.backward.weight, self.options.group)

    def find_used(self) -> bool:
        """Find the parameters that got gradients in this pass; return whether there are any."""
        if not self.hooks:
            self._compare()
        return bool(self.used or self.reached)

    @torch.no_grad()
    def end(self) -> None:
        """Launch the remaining buckets, wait, and write averaged gradients."""
        backward, self.backward = self.backward, None
        if backward is None:
            return
        extras, weight, group = self.buckets[-1].extras, backward.weight, self.options.group
        assert extras is not None
        everything = len(self.used) == len(self.parameters)
        extras.fill(None if everything else [self.flag[key] for key in self.used], backward)
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.launch(weight, group)
        for bucket in self.buckets:
            bucket.wait()
        for bucket in dict.fromkeys(self.late):
            bucket.launch(weight, group)
            bucket.wait()
        # Where all weights are 0, gradients stay the zeros that one device has then.
        divisor = 1.0 if backward.normalized else nonzero_or_one(extras.total)
        self._copy_out(extras.flags, divisor)
        extras.write_losses(backward, divisor)
        backward.scalars.clear()  # another unit's reducer must not do it again
        self.statistics.average(weight, divisor)

    def _compare(self) -> None:
        """Find the gradients that are new or were added to in this pass."""
        for parameter, before in zip(self.parameters, self.before, strict=False):
            grad, version = _version(parameter)
            if grad is not None and (grad is not before[0] or version > before[1]):
                self.used.add(id(parameter))
        self.before = []

    def _copy_out(self, flags: Tensor, divisor: Scalar) -> None:
        if self.options.static:
            used = self._check_static(flags)
        elif len(self.used) == len(self.parameters):
            used = self.used
        else:  # synchronizes with the device
            used = self._used_on_any_rank(flags)

        for bucket in self.buckets:
            bucket.copy_out(used, divisor, self.options.views)

    def _used_on_any_rank(self, flags: Tensor) -> set[int]:
        values = flags.tolist()
        return {key for key, number in self.flag.items() if values[number] > 0}

    def _check_static(self, flags: Tensor) -> set[int]:
        """Return what this pass uses; check that all passes and ranks use the same."""
        first = self.static_used is None
        if self.static_used is None:
            self.static_used = self._used_on_any_rank(flags)
        if self.used != self.static_used:
            other = "another rank" if first else "the first one"
            what = f"--static-graph: a backward pass used other parameters than {other}"
            raise StrategyError(format_message(what, instead="%%mgpu without --static-graph"))
        return self.static_used

    def close(self) -> None:
        """Remove the hooks, and give gradients memory of their own."""
        for hook in self.hooks.values():
            hook.remove()
        for bucket in self.buckets:
            bucket.detach_gradients()


def reduce_all(reducers: Sequence[Reducer]) -> bool:
    """Average the gradients of all units that a pass has reached on any rank.

    Ranks agree on the units first: the samples of each rank may reach different ones, and then
    ranks would wait for each other in the collectives of different units.

    Returns:
        Whether the pass reached any unit on this or another rank.
    """
    reached = [reducer.find_used() for reducer in reducers]
    if len(reducers) > 1 and any(reached):
        anywhere = torch.tensor(reached, dtype=torch.float32)  # on the CPU: no GPU has to wait
        all_reduce.all_reduce(anywhere, reducers[0].options.group).wait()
        reached = [bool(number) for number in anywhere.tolist()]
    for reducer, is_reached in zip(reducers, reached, strict=True):
        if is_reached:
            reducer.end()
        else:
            reducer.backward = None
    return any(reached)


def _version(parameter: nn.Parameter) -> tuple[Tensor | None, int]:
    """Return the gradient of ``parameter``, and how often it has been written to."""
    grad = parameter.grad
    return grad, 0 if grad is None else grad._version
