"""Gradients in buckets, averaged over ranks while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbmgpu.errors import StrategyError, compose

from . import all_reduce
from .base import Backward, Unit
from .buckets import Bucket, make_buckets
from .replication import RunningStatistics
from .scalars import Amount, or_one
from .trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced.

    Attributes:
        views: gradients are views of the buckets.
        static: every pass uses the same parameters.
        wire: the dtype in which gradients travel; None for their own.
    """

    views: bool = False
    static: bool = False
    wire: torch.dtype | None = None


class Reducer:
    """Averages the gradients of one unit.

    Every rank launches every bucket once per backward pass, in the same order, also
    buckets it has no gradient for; so ranks need not agree beforehand on what is used.

    Where all buckets leave at the end, gradients are compared with those before.  A hook on
    each parameter would tell as well, and costs a small model a tenth of its step.
    """

    def __init__(
        self, unit: Unit, overlap: bool = True, reduction: Reduction | None = None
    ) -> None:
        """Reduce for ``unit``; with ``overlap``, buckets leave as soon as they are full."""
        self.unit = unit
        self.reduction = reduction or Reduction()
        self.trainable = Trainable(unit)
        self.parameters = [p for p in self.trainable.parameters if p.requires_grad]
        self.flag = {id(p): i for i, p in enumerate(self.parameters)}
        self.buckets = make_buckets(self.parameters, self.reduction.wire)
        self.bucket_of = {id(p): b for b in self.buckets for p in b.parameters}
        self.place = {id(p): i for b in self.buckets for i, p in enumerate(b.parameters)}
        self.overlap = overlap and len(self.buckets) > 1
        self.hooks: dict[int, Any] = {}
        if self.overlap or self.reduction.views:
            self._hook()
        self.before: list[tuple[Tensor | None, int]] = []
        self.statistics = RunningStatistics(unit)
        self.backward: Backward | None = None
        self.used: set[int] = set()
        self.reached = False
        self.late: list[Bucket] = []
        self.always: set[int] | None = None
        self.aliased: set[int] = set()

    def begin(self, backward: Backward) -> None:
        """Wait for gradients of a new backward pass."""
        self.backward = backward
        self.used.clear()
        self.reached = False
        self.late.clear()
        for bucket in self.buckets:
            bucket.rearm(waits=self.overlap)
        if self.reduction.views:
            self._meet_views()
        if not self.hooks and any(p._post_accumulate_grad_hooks for p in self.parameters):
            self._hook()  # hooks of the cell may take gradients away as they come
        if not self.hooks:
            self.before = [_version(p) for p in self.parameters]

    def _hook(self) -> None:
        for parameter in self.parameters:
            handle = parameter.register_post_accumulate_grad_hook(self._arrived)
            self.hooks[id(parameter)] = handle

    def _meet_views(self) -> None:
        """Find out which gradients may be views: not those that the cell has set itself."""
        self.aliased.clear()
        for bucket in self.buckets:
            bucket.leave_to_holders()
            for view, parameter in zip(bucket.views, bucket.parameters, strict=True):
                if parameter.grad is None or parameter.grad is view:
                    self.aliased.add(id(parameter))

    def _become_view(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        if bucket.work is not None:
            what = "A gradient arrived twice in one backward pass, the second time too late"
            allowed = "A reentrant checkpoint does so; with --bucket-views it cannot be kept apart"
            raise StrategyError(compose(what, allowed, "%%mgpu without --bucket-views"))
        grad = parameter.grad
        plain = grad is not None and not grad.is_sparse and not grad.requires_grad
        if plain and id(parameter) in self.aliased:
            bucket.take(self.place[id(parameter)])

    def _arrived(self, parameter: nn.Parameter) -> None:
        if self.backward is None:
            return
        bucket = self.bucket_of[id(parameter)]
        self.reached = True
        if parameter.grad is not None:  # a hook of the cell may have taken it away
            self.used.add(id(parameter))
        if self.reduction.views:
            self._become_view(bucket, parameter)
        if bucket.work is not None:  # a reentrant checkpoint adds to a gradient twice
            self.late.append(bucket)
        bucket.waiting.discard(id(parameter))
        if self.overlap:
            for ready in self.buckets[:-1]:  # in order, as all ranks must
                if ready.waiting:
                    break
                if ready.work is None:
                    with torch.no_grad():
                        ready.launch(self.backward.weight)

    def look(self) -> bool:
        """Find out whether gradients of this pass have arrived, and which."""
        if not self.hooks:
            self._compare()
        return bool(self.used or self.reached)

    @torch.no_grad()
    def end(self) -> None:
        """Launch what is left, wait, and leave averaged gradients."""
        backward, self.backward = self.backward, None
        if backward is None:
            return
        tail, weight = self.buckets[-1].tail, backward.weight
        assert tail is not None
        everything = len(self.used) == len(self.parameters)
        tail.fill(None if everything else [self.flag[key] for key in self.used], backward)
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.launch(weight)
        for bucket in self.buckets:
            bucket.wait()
        for bucket in dict.fromkeys(self.late):
            bucket.launch(weight)
            bucket.wait()
        # Where no rank has anything to count, gradients stay the zeros that one device has then.
        divisor = 1.0 if backward.normalized else or_one(tail.total)
        self._spread(tail.flags, divisor)
        tail.give(backward, divisor)
        backward.scalars.clear()  # another unit's reducer must not do it again
        self.statistics.average(weight, divisor)

    def _compare(self) -> None:
        """Find out which gradients have arrived: new ones, and those that were added to."""
        for parameter, before in zip(self.parameters, self.before, strict=False):
            grad, version = _version(parameter)
            if grad is not None and (grad is not before[0] or version > before[1]):
                self.used.add(id(parameter))
        self.before = []

    def _spread(self, flags: Tensor, divisor: Amount) -> None:
        if self.reduction.static:
            seen = self._as_always(flags)
        elif len(self.used) == len(self.parameters):
            seen = self.used
        else:  # costs a device sync
            seen = self._used_anywhere(flags)

        for bucket in self.buckets:
            bucket.write_back(seen, divisor, self.reduction.views)

    def _used_anywhere(self, flags: Tensor) -> set[int]:
        values = flags.tolist()
        return {key for key, number in self.flag.items() if values[number] > 0}

    def _as_always(self, flags: Tensor) -> set[int]:
        """Return what this pass uses, having made sure that all passes and ranks use the same."""
        first = self.always is None
        if self.always is None:
            self.always = self._used_anywhere(flags)
        if self.used != self.always:
            whom = "another rank" if first else "the first one"
            what = f"--static-graph: a backward pass used other parameters than {whom}"
            raise StrategyError(compose(what, instead="%%mgpu without --static-graph"))
        return self.always

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self.hooks.values():
            hook.remove()
        for bucket in self.buckets:
            bucket.give()


def end_all(reducers: Sequence[Reducer]) -> bool:
    """Average the gradients of all units that a pass has reached, on some rank or other.

    Which of several units a rank's samples reach may differ; then each of them would wait for
    another one's sums.  Returns whether there was any.
    """
    reached = [reducer.look() for reducer in reducers]
    if len(reducers) > 1 and any(reached):
        anywhere = torch.tensor(reached, dtype=torch.float32)  # hosts meet, no GPU waits
        all_reduce.all_reduce(anywhere).wait()
        reached = [bool(number) for number in anywhere.tolist()]
    for reducer, takes_part in zip(reducers, reached, strict=True):
        if takes_part:
            reducer.end()
        else:
            reducer.backward = None
    return any(reached)


def _version(parameter: nn.Parameter) -> tuple[Tensor | None, int]:
    """Return the gradient of ``parameter``, and how often it has been written to."""
    grad = parameter.grad
    return grad, 0 if grad is None else grad._version
