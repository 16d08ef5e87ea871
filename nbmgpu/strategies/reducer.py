"""Gradients in buckets, averaged over ranks while the backward pass still runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from nbmgpu.errors import StrategyError, compose

from .base import Backward, Unit
from .replicas import RunningStatistics

if TYPE_CHECKING:
    from torch import Tensor

FIRST_BUCKET = 1 * 2**20
BUCKET = 25 * 2**20
"""Bytes per bucket, as in DistributedDataParallel: the first is small, to start early."""

SCALARS = 8
"""How many losses of one backward pass are made global."""


REFERENCES = 2
"""References to a view that nobody keeps: the list's, and that of the question."""


@dataclass(frozen=True)
class Way:
    """How gradients are reduced.

    Attributes:
        views: gradients are views of the buckets.
        static: every pass uses the same parameters.
        wire: the dtype in which gradients travel; None for their own.
    """

    views: bool = False
    static: bool = False
    wire: torch.dtype | None = None


class Bucket:
    """Gradients that travel together: a flat tensor, with a view of it per parameter.

    The last bucket has a tail: a flag per parameter of the reducer (did this rank use
    it?), the rank's weight, and the losses.  So none of these needs a collective.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        like: Tensor,
        tail: int = 0,
        wire: torch.dtype | None = None,
    ) -> None:
        """Make room for ``parameters`` and ``tail`` numbers, on the device of ``like``.

        Gradients travel as ``wire``; then there is no tail.
        """
        self.parameters = parameters
        self.wire = wire if like.dtype in (torch.float32, torch.float64) else None
        self.sizes = [p.numel() for p in parameters]
        self._take_memory(torch.zeros(sum(self.sizes) + tail, dtype=like.dtype, device=like.device))
        self.waiting: set[int] = set()
        self.work: Any = None
        self.sent = self.flat

    def _allocate(self, flat: Tensor) -> None:
        total = sum(self.sizes)
        self.flat = flat
        self.tail = flat[total:]
        parts = zip(flat[:total].split(self.sizes), self.parameters, strict=True)
        self.views = [part.view(p.shape) for part, p in parts] if self.parameters else []

    def _take_memory(self, flat: Tensor) -> None:
        """Be in ``flat``, and know how many tensors share it while the cell has none of them."""
        self._allocate(flat)
        self.holders = self._holders()

    def _holders(self) -> int:
        # Torch tells nowhere else how many tensors share a memory.
        return int(torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata))

    def rearm(self) -> None:
        """Wait for all parameters again."""
        self.waiting = {id(p) for p in self.parameters}
        self.work = None

    def take(self, place: int) -> None:
        """Let the gradient of the parameter at ``place`` be a view, with the value it has."""
        parameter, view = self.parameters[place], self.views[place]
        if parameter.grad is not None and parameter.grad is not view:
            view.copy_(parameter.grad)
        parameter.grad = view

    def give(self) -> None:
        """Let gradients that are views have memory of their own."""
        for view, parameter in zip(self.views, self.parameters, strict=True):
            is_view = parameter.grad is view
            if is_view:
                parameter.grad = view.clone()

    def leave_to_holders(self) -> None:
        """Take new memory if the cell has kept gradients of earlier passes: they stay as they are.

        What it has kept are the views themselves, or others of the same memory.  Where a
        view still is the gradient, the pass adds to it, as on one device.
        """
        grads = [parameter.grad for parameter in self.parameters]
        idle = [place for place, grad in enumerate(grads) if grad is not self.views[place]]
        if not idle:
            return
        kept = [place for place in idle if sys.getrefcount(self.views[place]) > REFERENCES]
        if kept or self._holders() > self.holders:
            self._take_memory(torch.zeros_like(self.flat))

    def launch(self, weight: float | Tensor) -> None:
        """Copy the gradients in, zeros where there is none, weigh them, start the sum."""
        targets, grads = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                grad = parameter.grad
                targets.append(view)
                grads.append(grad.to_dense() if grad.is_sparse else grad)
        if targets:
            torch._foreach_copy_(targets, grads)
        gradients = self.flat[: self.flat.numel() - self.tail.numel()]
        if isinstance(weight, float) and weight == 0:
            gradients.zero_()  # not multiplied: an empty slice may have given nan
        elif isinstance(weight, torch.Tensor):
            # So may a mask that leaves nothing, which only the device knows. In place: a copy
            # of a bucket here would be a rank's peak of memory.
            gradients.mul_(weight).masked_fill_(weight == 0, 0.0)
        else:
            gradients.mul_(weight)
        self.sent = self.flat if self.wire is None else self.flat.to(self.wire)
        self.work = dist.all_reduce(self.sent, async_op=True)

    def wait(self) -> None:
        """Wait for the sum over ranks."""
        self.work.wait()
        if self.sent is not self.flat:
            self.flat.copy_(self.sent)
            self.sent = self.flat

    def spread(self, used: Callable[[nn.Parameter], bool], as_views: bool = False) -> None:
        """Bring the reduced gradients back into ``.grad``."""
        targets, sources = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if not used(parameter):
                continue
            if parameter.grad is None:
                parameter.grad = view if as_views else view.clone()
            elif parameter.grad is view:
                continue
            elif parameter.grad.is_sparse:
                parameter.grad = view.to_sparse(parameter.grad.sparse_dim())
            else:
                targets.append(parameter.grad)
                sources.append(view)
        if targets:
            torch._foreach_copy_(targets, sources)


class Reducer:
    """Averages the gradients of one unit.

    Every rank launches every bucket once per backward pass, in the same order, also
    buckets it has no gradient for; so ranks need not agree beforehand on what is used.
    """

    def __init__(self, unit: Unit, overlap: bool = True, way: Way | None = None) -> None:
        """Hook the unit's parameters; with ``overlap``, buckets leave as soon as they are full."""
        self.unit = unit
        self.overlap = overlap
        self.way = way or Way()
        self.frozen = unit.frozen()
        self.parameters = [p for p in unit.parameters() if p.requires_grad]
        self.flag = {id(p): i for i, p in enumerate(self.parameters)}
        tail = len(self.parameters) + 1 + SCALARS
        self.buckets = make_buckets(self.parameters, tail, self.way.wire)
        self.bucket_of = {id(p): b for b in self.buckets for p in b.parameters}
        self.place = {id(p): i for b in self.buckets for i, p in enumerate(b.parameters)}
        self.hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in self.parameters]
        self.statistics = RunningStatistics(unit)
        self.backward: Backward | None = None
        self.used: set[int] = set()
        self.late: list[Bucket] = []
        self.always: set[int] | None = None
        self.aliased: set[int] = set()

    def begin(self, backward: Backward) -> None:
        """Wait for gradients of a new backward pass."""
        self.backward = backward
        self.used.clear()
        self.late.clear()
        for bucket in self.buckets:
            bucket.rearm()
        if self.way.views:
            self._meet_views()

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
        self.used.add(id(parameter))
        if self.way.views:
            self._become_view(bucket, parameter)
        if bucket.work is not None:  # a reentrant checkpoint adds to a gradient twice
            self.late.append(bucket)
        bucket.waiting.discard(id(parameter))
        if self.overlap:
            for ready in self.buckets[:-1]:  # in order, as all ranks must
                if ready.waiting:
                    break
                if ready.work is None:
                    ready.launch(self.backward.weight)

    def end(self) -> None:
        """Launch what is left, wait, and leave averaged gradients; nothing if none arrived."""
        backward, self.backward = self.backward, None
        if backward is None or not self.used:
            return
        last = self.buckets[-1]
        self._fill_tail(last.tail, backward)
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.launch(backward.weight)
        for bucket in self.buckets:
            bucket.wait()
        for bucket in dict.fromkeys(self.late):
            bucket.launch(backward.weight)
            bucket.wait()
        total = last.tail[len(self.parameters)].clone()
        # Where no rank has anything to count, gradients stay the zeros that one device has then.
        divisor = torch.where(total == 0, 1.0, total)
        if not backward.normalized:
            for bucket in self.buckets:
                bucket.flat.div_(divisor)
        self._spread(last.tail[: len(self.parameters)])
        self._globalize(backward, last.tail[len(self.parameters) + 1 :], total)
        self.statistics.average(backward.weight, None if backward.normalized else divisor)

    def _fill_tail(self, tail: Tensor, backward: Backward) -> None:
        count = len(self.parameters)
        tail.zero_()
        if len(self.used) == count:
            tail[:count] = 1
        else:
            tail[[self.flag[key] for key in self.used]] = 1
        tail[count] = backward.weight
        silent = isinstance(backward.weight, float) and backward.weight == 0
        for place, scalar, add in zip(
            range(count + 1, count + 1 + SCALARS), backward.scalars, backward.totals, strict=False
        ):
            if not silent:
                value = scalar.detach() * (1.0 if add else backward.weight)
                tail[place] = torch.where(tail[count] > 0, value, 0.0)

    def _spread(self, flags: Tensor) -> None:
        if self.way.static:
            seen = self._as_always(flags)
        elif len(self.used) == len(self.parameters):
            seen = self.used
        else:  # costs a device sync
            seen = self._used_anywhere(flags)

        def used(parameter: nn.Parameter) -> bool:
            return id(parameter) in seen

        for bucket in self.buckets:
            bucket.spread(used, self.way.views)

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

    def _globalize(self, backward: Backward, sums: Tensor, total: Tensor) -> None:
        for value, scalar, add in zip(sums, backward.scalars, backward.totals, strict=False):
            # After a division by the total weight a sum has to be multiplied back.
            scale = total if add and not backward.normalized else 1.0
            scalar.data.copy_(torch.where(total == 0, torch.nan, value * scale))
        backward.scalars.clear()  # another unit's reducer must not do it again

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self.hooks:
            hook.remove()
        for bucket in self.buckets:
            bucket.give()


def make_buckets(
    parameters: list[nn.Parameter], tail: int, wire: torch.dtype | None = None
) -> list[Bucket]:
    """Group ``parameters`` in reverse order by device and dtype; the last one has the tail.

    Gradients travel as ``wire``, but never the tail.
    """
    groups: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        limit = FIRST_BUCKET if len(groups) <= 1 else BUCKET
        group = groups[-1] if groups else []
        fits = group and (group[0].dtype, group[0].device) == (parameter.dtype, parameter.device)
        if fits and sum(p.numel() * p.element_size() for p in group) < limit:
            group.append(parameter)
        else:
            groups.append([parameter])
    tail_fits = groups[-1][0].dtype == torch.float32 and wire is None
    buckets = [Bucket(g, g[0], wire=wire) for g in groups[: len(groups) - tail_fits]]
    if tail_fits:
        buckets.append(Bucket(groups[-1], groups[-1][0], tail))
    else:  # flags and losses need more digits than half precision has
        buckets.append(Bucket([], groups[-1][0].new_zeros(0, dtype=torch.float32), tail))
    return buckets
