"""Reduces gradients in buckets while the backward pass still runs."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .base import Backward, Unit
from .buckets import Bucket, make_buckets
from .gradient_views import GradientViews
from .replication import RunningStatistics
from .scalars import nonzero_or_one
from .trainable import Trainable
from .used_parameters import UsedParameters

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

GRADIENT_HOOKS = attrgetter("_post_accumulate_grad_hooks")


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

    Attributes:
        options: how gradients are reduced.
        trainable: the parameters that the unit trained when the reducer was created.
        parameters: those that require gradients.
        buckets: the buckets of their gradients, in the order in which they are launched.
        bucket_of: the bucket of each parameter, by ``id``.
        overlap: whether buckets are launched while the backward pass runs.
        hooks: handles of the hooks on parameters, by ``id``; there may be none.
        used: the parameters that the pass uses.
        views: makes gradients views of the buckets; None without ``--bucket-views``.
        statistics: the unit's running statistics, which are averaged with the gradients.
        backward: the pass that is running, or None.
        late: buckets that got another gradient after their launch, and are launched again.
    """

    def __init__(
        self, unit: Unit, overlap: bool = True, options: ReducerOptions | None = None
    ) -> None:
        """Reduce for ``unit``; with ``overlap``, buckets are launched as soon as they are full."""
        self.options = options or ReducerOptions()
        self.trainable = Trainable(unit)
        self.parameters = [p for p in self.trainable.parameters if p.requires_grad]
        self.buckets = make_buckets(self.parameters, self.options.comm_dtype)
        self.bucket_of = {id(p): b for b in self.buckets for p in b.parameters}
        self.overlap = overlap and len(self.buckets) > 1
        self.hooks: dict[int, Any] = {}
        self.used = UsedParameters(self.parameters)
        self.views = GradientViews(self.buckets) if self.options.views else None
        if self.overlap or self.views is not None:
            self._hook()
        self.statistics = RunningStatistics(unit, self.options.group)
        self.backward: Backward | None = None
        self.late: list[Bucket] = []

    def begin(self, backward: Backward) -> None:
        """Prepare for the gradients of a backward pass."""
        self.backward = backward
        self.used.clear()
        self.late.clear()
        for bucket in self.buckets:
            bucket.reset(waits=self.overlap)
        if self.views is not None:
            self.views.begin()
        if not self.hooks and any(map(GRADIENT_HOOKS, self.parameters)):
            self._hook()  # hooks of the cell may remove gradients as they arrive
        if not self.hooks:
            self.used.snapshot()

    def _hook(self) -> None:
        for parameter in self.parameters:
            handle = parameter.register_post_accumulate_grad_hook(self._on_gradient)
            self.hooks[id(parameter)] = handle

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self.backward is None:
            return
        bucket = self.bucket_of[id(parameter)]
        self.used.reached = True
        if parameter.grad is not None:  # a hook of the cell may have removed it
            self.used.ids.add(id(parameter))
        if self.views is not None:
            self.views.make_view(bucket, parameter)
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
            self.used.compare()
        return bool(self.used.ids or self.used.reached)

    @torch.no_grad()
    def end(self) -> None:
        """Launch the remaining buckets, wait, and write averaged gradients."""
        backward, self.backward = self.backward, None
        if backward is None:
            return
        extras, weight, group = self.buckets[-1].extras, backward.weight, self.options.group
        assert extras is not None
        extras.fill(self.used.flags(), backward)
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
        find_used = self.used.static if self.options.static else self.used.on_any_rank
        used = find_used(extras.flags)
        for bucket in self.buckets:
            bucket.copy_out(used, divisor, self.options.views)
        extras.write_losses(backward, divisor)
        backward.scalars.clear()  # another unit's reducer must not do it again
        self.statistics.average(weight, divisor)

    def close(self) -> None:
        """Remove the hooks, and give gradients memory of their own."""
        for hook in self.hooks.values():
            hook.remove()
        for bucket in self.buckets:
            bucket.detach_gradients()
