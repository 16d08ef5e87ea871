"""Gradients that travel together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import all_reduce
from .reduction_extras import make_tail, tail_size
from .scalars import Amount

if TYPE_CHECKING:
    from torch import Tensor

FIRST_BUCKET = 1 * 2**20
BUCKET = 25 * 2**20
"""Bytes per bucket, as in DistributedDataParallel: the first is small, to start early."""

CACHED = 2**16
"""Elements up to which a CPU goes twice through a bucket as fast as once."""

REFERENCES = 2
"""References to a view that nobody keeps: the list's, and that of the question."""


class Bucket:
    """Gradients that travel together: a flat tensor, with a view of it per parameter.

    The last bucket has the tail.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        like: Tensor,
        flags: int = 0,
        wire: torch.dtype | None = None,
    ) -> None:
        """Make room for ``parameters``, and for a tail with so many ``flags`` if there are any.

        Memory is on the device of ``like``.  Gradients travel as ``wire``; then there is no tail.
        """
        self.parameters = parameters
        self.wire = wire if like.dtype in (torch.float32, torch.float64) else None
        self.sizes = [p.numel() for p in parameters]
        self.flags = flags
        length = sum(self.sizes) + (tail_size(flags) if flags else 0)
        self._take_memory(torch.zeros(length, dtype=like.dtype, device=like.device))
        self.waiting: set[int] = set()
        self.work: Any = None
        self.sent = self.flat

    def _allocate(self, flat: Tensor) -> None:
        total = sum(self.sizes)
        self.flat = flat
        self.gradients = flat[:total]
        self.tail = make_tail(flat[total:], self.flags) if self.flags else None
        parts = zip(self.gradients.split(self.sizes), self.parameters, strict=True)
        self.views = [part.view(p.shape) for part, p in parts] if self.parameters else []

    def _take_memory(self, flat: Tensor) -> None:
        """Be in ``flat``, and know how many tensors share it while the cell has none of them."""
        self._allocate(flat)
        self.holders = self._holders()

    def _holders(self) -> int:
        # Torch tells nowhere else how many tensors share a memory.
        return int(torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata))

    def rearm(self, waits: bool) -> None:
        """Be there for a new pass, which ``waits`` for all parameters again."""
        self.waiting = {id(p) for p in self.parameters} if waits else set()
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

    def launch(self, weight: Amount) -> None:
        """Copy the gradients in, zeros where there is none, weigh them, start the sum."""
        if isinstance(weight, float) and weight == 0:
            self.gradients.zero_()  # not multiplied: an empty share may have given nan
        elif self._at_once():
            self._weigh_in(weight)
        else:
            self._copy_in()
            self.gradients.mul_(weight)
            if isinstance(weight, torch.Tensor):
                # So may a mask that leaves nothing, which only the device knows. In place: a copy
                # of a bucket here would be a rank's peak of memory.
                self.gradients.masked_fill_(weight == 0, 0.0)
        self.sent = self.flat if self.wire is None else self.flat.to(self.wire)
        self.work = all_reduce.all_reduce(self.sent)

    def _at_once(self) -> bool:
        """Tell whether to calculate while copying: one way through a CPU's memory, not two.

        A GPU copies all gradients by one kernel, and has the bandwidth.  So has a CPU's cache.
        """
        return self.flat.device.type == "cpu" and self.flat.numel() >= CACHED

    def _weigh_in(self, weight: Amount) -> None:
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                torch.mul(_dense(parameter.grad), weight, out=view)

    def _copy_in(self) -> None:
        targets, grads = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                targets.append(view)
                grads.append(_dense(parameter.grad))
        if targets:
            torch._foreach_copy_(targets, grads)

    def wait(self) -> None:
        """Wait for the sum over ranks."""
        self.work.wait()
        if self.sent is not self.flat:
            self.flat.copy_(self.sent)
            self.sent = self.flat

    def write_back(self, used: set[int], divisor: Amount, as_views: bool = False) -> None:
        """Bring the reduced gradients, divided by ``divisor``, back into ``.grad``.

        Those of parameters that were not ``used``, here as ids, stay as they are.
        """
        if as_views or not self._at_once():
            if not isinstance(divisor, float) or divisor != 1.0:
                self.gradients.div_(divisor)
            divisor = 1.0
        targets, sources = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if id(parameter) not in used:
                continue
            if parameter.grad is None and as_views:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view / divisor
            elif parameter.grad is view:
                continue
            elif parameter.grad.is_sparse:
                parameter.grad = (view / divisor).to_sparse(parameter.grad.sparse_dim())
            elif divisor == 1.0:
                targets.append(parameter.grad)
                sources.append(view)
            else:
                torch.div(view, divisor, out=parameter.grad)
        if targets:
            torch._foreach_copy_(targets, sources)


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def make_buckets(parameters: list[nn.Parameter], wire: torch.dtype | None = None) -> list[Bucket]:
    """Group ``parameters`` in reverse order by device and dtype; the last one has the tail.

    Gradients travel as ``wire``, but never the tail.
    """
    flags = len(parameters)
    groups: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        limit = FIRST_BUCKET if len(groups) <= 1 else BUCKET
        group = groups[-1] if groups else []
        fits = group and (group[0].dtype, group[0].device) == (parameter.dtype, parameter.device)
        if fits and sum(p.numel() * p.element_size() for p in group) < limit:
            group.append(parameter)
        else:
            groups.append([parameter])
    exact = groups[-1][0].dtype in (torch.float32, torch.float64)
    tail_fits = exact and wire is None
    buckets = [Bucket(g, g[0], wire=wire) for g in groups[: len(groups) - tail_fits]]
    if tail_fits:
        buckets.append(Bucket(groups[-1], groups[-1][0], flags))
    else:  # flags and losses need more digits than half precision has
        dtype = groups[-1][0].dtype if exact else torch.float32
        buckets.append(Bucket([], groups[-1][0].new_zeros(0, dtype=dtype), flags))
    return buckets
