"""``ddp``: every rank holds the model, gradients are averaged during the backward pass.

The semantics are DistributedDataParallel's (Li et al., VLDB 2020, 2006.15704):
gradients are reduced in buckets, in the reverse order of the parameters, while
the rest of the backward pass still runs.  What differs is where it hooks in: on
the parameters themselves and not on a wrapped ``forward``.  So the user's model
stays what it is, and whatever reaches a parameter is right: ``model.forward``
called directly, several forwards before one backward, parts of a model that a
loss does not use, penalties and second-order terms.

Gradients are averaged by weight.  With rank r's weight w_r, the samples behind
its loss, a ``.grad`` ends up as sum(w_r * grad_r) / sum(w_r), the gradient of the
mean over the global batch, however unevenly it was split.  An earlier ``.grad``
that is the same on all ranks passes through unchanged, hence gradient
accumulation needs nothing special.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from .base import Backward, Strategy, Unit

if TYPE_CHECKING:
    from torch import Tensor

FIRST_BUCKET = 1 * 2**20
BUCKET = 25 * 2**20
"""Bytes per bucket, as in DistributedDataParallel: the first is small, to start early."""

SCALARS = 8
"""How many losses of one backward pass are made global."""


class Bucket:
    """Gradients that travel together: a flat tensor, with a view of it per parameter.

    The last bucket has a tail: a flag per parameter of the reducer (did this rank use
    it?), the rank's weight, and the losses.  So none of these needs a collective.
    """

    def __init__(self, parameters: list[nn.Parameter], like: Tensor, tail: int = 0) -> None:
        """Make room for ``parameters`` and ``tail`` numbers, on the device of ``like``."""
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        self.flat = torch.zeros(sum(sizes) + tail, dtype=like.dtype, device=like.device)
        self.tail = self.flat[sum(sizes) :]
        parts = zip(self.flat[: sum(sizes)].split(sizes), parameters, strict=True)
        self.views = [part.view(p.shape) for part, p in parts] if parameters else []
        self.waiting: set[int] = set()
        self.work: Any = None

    def rearm(self) -> None:
        """Wait for all parameters again."""
        self.waiting = {id(p) for p in self.parameters}
        self.work = None

    def launch(self, weight: float | Tensor) -> None:
        """Copy the gradients in, zeros where there is none, weigh them, start the sum."""
        targets, grads = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                grad = parameter.grad
                targets.append(view)
                grads.append(grad.to_dense() if grad.is_sparse else grad)
        if targets:
            torch._foreach_copy_(targets, grads)
        gradients = self.flat[: self.flat.numel() - self.tail.numel()]
        if isinstance(weight, float) and weight == 0:
            gradients.zero_()  # not multiplied: an empty slice may have given nan
        else:
            gradients.mul_(weight)
        self.work = dist.all_reduce(self.flat, async_op=True)

    def spread(self, used: Callable[[nn.Parameter], bool]) -> None:
        """Copy the reduced gradients back into ``.grad``."""
        targets, sources = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if not used(parameter):
                continue
            if parameter.grad is None:
                parameter.grad = view.clone()
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

    def __init__(self, unit: Unit, overlap: bool) -> None:
        """Hook the unit's parameters; with ``overlap``, buckets leave as soon as they are full."""
        self.unit = unit
        self.overlap = overlap
        self.frozen = unit.frozen()
        self.parameters = [p for p in unit.parameters() if p.requires_grad]
        self.flag = {id(p): i for i, p in enumerate(self.parameters)}
        self.buckets = make_buckets(self.parameters, tail=len(self.parameters) + 1 + SCALARS)
        self.bucket_of = {id(p): b for b in self.buckets for p in b.parameters}
        self.hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in self.parameters]
        self.statistics = list(unit.buffers())
        self.versions = [b._version for b in self.statistics]
        self.backward: Backward | None = None
        self.used: set[int] = set()
        self.late: list[Bucket] = []

    def begin(self, backward: Backward) -> None:
        """Wait for gradients of a new backward pass."""
        self.backward = backward
        self.used.clear()
        self.late.clear()
        for bucket in self.buckets:
            bucket.rearm()

    def _arrived(self, parameter: nn.Parameter) -> None:
        if self.backward is None:
            return
        bucket = self.bucket_of[id(parameter)]
        self.used.add(id(parameter))
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
            bucket.work.wait()
        for bucket in dict.fromkeys(self.late):
            bucket.launch(backward.weight)
            bucket.work.wait()
        total = last.tail[len(self.parameters)].clone()
        if not backward.normalized:
            for bucket in self.buckets:
                bucket.flat.div_(total)
        self._spread(last.tail[: len(self.parameters)])
        self._globalize(backward, last.tail[len(self.parameters) + 1 :], total)
        self._average_statistics(backward, total)

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
        everywhere = len(self.used) == len(self.parameters)
        seen = None if everywhere else flags.tolist()  # costs a device sync: only when needed

        def used(parameter: nn.Parameter) -> bool:
            return seen is None or seen[self.flag[id(parameter)]] > 0

        for bucket in self.buckets:
            bucket.spread(used)

    def _globalize(self, backward: Backward, sums: Tensor, total: Tensor) -> None:
        for value, scalar, add in zip(sums, backward.scalars, backward.totals, strict=False):
            # After a division by the total weight a sum has to be multiplied back.
            scale = total if add and not backward.normalized else 1.0
            scalar.data.copy_(value * scale)
        backward.scalars.clear()  # another unit's reducer must not do it again

    def _average_statistics(self, backward: Backward, total: Tensor) -> None:
        """Average running statistics that changed, so that ranks evaluate alike."""
        normalised = self._running_statistics()
        changed = [
            buffer
            for buffer, version in zip(self.statistics, self.versions, strict=True)
            if buffer._version > version or id(buffer) in normalised
        ]
        if not changed:
            return
        flat = torch.cat([b.reshape(-1).float() for b in changed]) * backward.weight
        dist.all_reduce(flat)
        for buffer, part in zip(changed, flat.split([b.numel() for b in changed]), strict=True):
            buffer.copy_((part if backward.normalized else part / total).view(buffer.shape))
        self.versions = [b._version for b in self.statistics]

    def _running_statistics(self) -> set[int]:
        """Return the buffers of batch normalisation, which change without a new version."""
        modules = (m for root in self.unit.modules for m in root.modules())
        layers = [m for m in modules if isinstance(m, nn.modules.batchnorm._NormBase)]
        return {id(b) for m in layers if m.training for b in m.buffers(recurse=False)}

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self.hooks:
            hook.remove()


def make_buckets(parameters: list[nn.Parameter], tail: int) -> list[Bucket]:
    """Group ``parameters`` in reverse order by device and dtype; the last one has the tail."""
    groups: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        limit = FIRST_BUCKET if len(groups) <= 1 else BUCKET
        group = groups[-1] if groups else []
        fits = group and (group[0].dtype, group[0].device) == (parameter.dtype, parameter.device)
        if fits and sum(p.numel() * p.element_size() for p in group) < limit:
            group.append(parameter)
        else:
            groups.append([parameter])
    tail_fits = groups[-1][0].dtype == torch.float32
    buckets = [Bucket(group, group[0]) for group in groups[: len(groups) - tail_fits]]
    if tail_fits:
        buckets.append(Bucket(groups[-1], groups[-1][0], tail))
    else:  # flags and losses need more digits than half precision has
        buckets.append(Bucket([], groups[-1][0].new_zeros(0, dtype=torch.float32), tail))
    return buckets


class DistributedDataParallel(Strategy):
    """Replicated parameters, averaged gradients."""

    name: ClassVar[str] = "ddp"
    summary: ClassVar[str] = "every rank holds the model; gradients are averaged as they arrive"
    hooks_per_parameter: ClassVar[int] = 1

    def __init__(self, rank: int, world_size: int, device: str) -> None:
        """Start without any unit."""
        super().__init__(rank, world_size, device)
        self._units: list[Unit] = []
        self._reducers: list[Reducer] = []

    def prepare(self, units: list[Unit]) -> None:
        """Give all ranks rank 0's values, then hook the parameters."""
        for unit in units:
            broadcast_unless_equal([*unit.parameters(), *unit.buffers()])
        self._hook(units)

    def _hook(self, units: list[Unit]) -> None:
        self.release()
        self._units = units
        # With several units, which of them a backward pass reaches first may differ
        # between ranks; then buckets leave at the end, unit by unit.
        trainable = [u for u in units if any(p.requires_grad for p in u.parameters())]
        self._reducers = [Reducer(unit, overlap=len(trainable) == 1) for unit in trainable]

    def begin_backward(self, backward: Backward) -> None:
        """Wait for gradients, also of parameters that the cell has unfrozen meanwhile."""
        if any(reducer.frozen != reducer.unit.frozen() for reducer in self._reducers):
            self._hook(self._units)
        for reducer in self._reducers:
            reducer.begin(backward)

    def end_backward(self, backward: Backward) -> None:
        """Average what arrived."""
        for reducer in self._reducers:
            reducer.end()

    def release(self) -> None:
        """Take all hooks off."""
        for reducer in self._reducers:
            reducer.close()
        self._reducers = []


def broadcast_unless_equal(tensors: list[Tensor]) -> None:
    """Give every rank rank 0's values.

    Objects that came from the notebook are equal already; comparing a checksum is
    much cheaper than sending them.
    """
    groups: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device, []).append(tensor.detach())
    for members in groups.values():
        sums = [m.sum(dtype=torch.float64) for m in members if m.numel()]
        if not sums:
            continue
        mine = torch.nan_to_num(torch.stack(sums))
        low, high = mine.clone(), mine.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        if not torch.equal(low, high):
            for member in members:
                dist.broadcast(member, 0)
