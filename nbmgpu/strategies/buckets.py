"""Buckets of gradients, each reduced by one all-reduce."""

from __future__ import annotations

import sys
from itertools import repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import collectives
from .reduction_extras import extras_size, make_extras
from .scalars import Scalar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

FIRST_BUCKET_BYTES = 1 * 2**20
BUCKET_BYTES = 25 * 2**20
"""Bytes per bucket, as in DistributedDataParallel: the first is small, to start early."""

CACHED_ELEMENTS = 2**16
"""Elements up to which a CPU makes two passes over a bucket as fast as one."""

GRAD, IS_SPARSE = attrgetter("grad"), attrgetter("is_sparse")

UNUSED_VIEW_REFERENCES = 2
"""Reference count of a view that only the list of views and ``getrefcount`` itself reference."""


class Bucket:
    """Gradients that are reduced together: a flat tensor, with a view of it per parameter.

    The last bucket of a unit also holds the ``ReductionExtras``.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        like: Tensor,
        flags: int = 0,
        comm_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate memory for the gradients of ``parameters``, on the device of ``like``.

        Args:
            parameters: parameters, in the order of their views.
            like: has the dtype and the device of the bucket.
            flags: number of flags in the extras; 0 for no extras.
            comm_dtype: dtype of the all-reduce, without extras; None for the dtype of ``like``.
        """
        self.parameters = parameters
        self.comm_dtype = comm_dtype if like.dtype in (torch.float32, torch.float64) else None
        self.ids = {id(p) for p in parameters}
        self.sizes = [p.numel() for p in parameters]
        self.flags = flags
        length = sum(self.sizes) + (extras_size(flags) if flags else 0)
        self._use_memory(torch.zeros(length, dtype=like.dtype, device=like.device))
        self.waiting: set[int] = set()
        self.work: Any = None
        self.sent = self.flat

    def _make_views(self, flat: Tensor) -> None:
        total = sum(self.sizes)
        self.flat = flat
        self.gradients = flat[:total]
        self.extras = make_extras(flat[total:], self.flags) if self.flags else None
        parts = zip(self.gradients.split(self.sizes), self.parameters, strict=True)
        self.views = [part.view(p.shape) for part, p in parts] if self.parameters else []

    def _use_memory(self, flat: Tensor) -> None:
        """Use ``flat``, and count the tensors that share its storage before the cell holds any."""
        self._make_views(flat)
        self.storage_users = self._count_storage_users()

    def _count_storage_users(self) -> int:
        # Torch has no public function for the number of tensors that share a storage.
        return int(torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata))

    def reset(self, waits: bool) -> None:
        """Prepare for a new pass; with ``waits``, it waits for all parameters again."""
        self.waiting = set(self.ids) if waits else set()
        self.work = None

    def make_gradient_view(self, index: int) -> None:
        """Make the gradient of the parameter at ``index`` a view of the bucket, with its value."""
        parameter, view = self.parameters[index], self.views[index]
        if parameter.grad is not None and parameter.grad is not view:
            view.copy_(parameter.grad)
        parameter.grad = view

    def detach_gradients(self) -> None:
        """Copy gradients that are views to memory of their own."""
        for view, parameter in zip(self.views, self.parameters, strict=True):
            is_view = parameter.grad is view
            if is_view:
                parameter.grad = view.clone()

    def reallocate_if_referenced(self) -> None:
        """Use new memory if the cell keeps gradients of earlier passes, which must not change.

        The cell may keep the views themselves, or other tensors with the same storage.  A view
        that still is the gradient keeps its memory: the pass adds to it, as on one device.
        """
        grads = [parameter.grad for parameter in self.parameters]
        unused = [index for index, grad in enumerate(grads) if grad is not self.views[index]]
        if not unused:
            return
        kept = [i for i in unused if sys.getrefcount(self.views[i]) > UNUSED_VIEW_REFERENCES]
        if kept or self._count_storage_users() > self.storage_users:
            self._use_memory(torch.zeros_like(self.flat))

    def launch(self, weight: Scalar, group: ProcessGroup | None = None) -> None:
        """Copy the gradients in, zeros where there is none, weight them, start the all-reduce."""
        if isinstance(weight, float) and weight == 0:
            self.gradients.zero_()  # not multiplied: an empty shard may have produced nan
        elif self._in_one_pass():
            self._copy_in_weighted(weight)
        else:
            self._copy_in()
            self.gradients.mul_(weight)
            if isinstance(weight, torch.Tensor):
                # An empty loss mask may have produced nan, too, and only the device has the weight.
                # In place: a copy of a bucket here would be a rank's peak memory.
                self.gradients.masked_fill_(weight == 0, 0.0)
        self.sent = self.flat if self.comm_dtype is None else self.flat.to(self.comm_dtype)
        self.work = collectives.all_reduce(self.sent, group)

    def _in_one_pass(self) -> bool:
        """Whether to compute while copying: one pass over a CPU's memory, not two.

        Two passes are as fast on a GPU, which copies all gradients with one kernel, and for a
        bucket that fits a CPU's cache.
        """
        return self.flat.device.type == "cpu" and self.flat.numel() >= CACHED_ELEMENTS

    def _copy_in_weighted(self, weight: Scalar) -> None:
        for view, parameter in zip(self.views, self.parameters, strict=True):
            grad = parameter.grad
            if grad is None:
                view.zero_()
            else:
                torch.mul(_dense(grad), weight, out=view)

    def _plain_gradients(self) -> list[Tensor] | None:
        """Return the gradients if all are there, dense, and in memory of their own, as a rule.

        Loops of Python over many parameters take longer than copying their gradients.
        """
        grads = list(map(GRAD, self.parameters))
        others = any(map(is_, grads, repeat(None))) or any(map(is_, grads, self.views))
        return None if others or any(map(IS_SPARSE, grads)) else grads

    def _copy_in(self) -> None:
        if plain := self._plain_gradients():
            torch._foreach_copy_(self.views, plain)
            return
        targets, grads = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            grad = parameter.grad
            if grad is None:
                view.zero_()
            elif grad is not view:
                targets.append(view)
                grads.append(_dense(grad))
        if targets:
            torch._foreach_copy_(targets, grads)

    def wait(self) -> None:
        """Wait for the all-reduce."""
        self.work.wait()
        if self.sent is not self.flat:
            self.flat.copy_(self.sent)
            self.sent = self.flat

    def copy_out(self, used: set[int], divisor: Scalar, as_views: bool = False) -> None:
        """Copy the reduced gradients, divided by ``divisor``, to ``.grad``.

        Args:
            used: ids of the parameters that any rank used; gradients of others do not change.
            divisor: sum of the ranks' weights.
            as_views: let gradients be views of the bucket instead of copies.
        """
        if as_views or not self._in_one_pass():
            if not isinstance(divisor, float) or divisor != 1.0:
                self.gradients.div_(divisor)
            divisor = 1.0
        is_copied = isinstance(divisor, float) and divisor == 1.0
        if is_copied and self.ids <= used and (plain := self._plain_gradients()):
            torch._foreach_copy_(plain, self.views)
            return
        targets, sources = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if id(parameter) not in used:
                continue
            grad = parameter.grad
            if grad is None and as_views:
                parameter.grad = view
            elif grad is None:
                parameter.grad = view / divisor
            elif grad is view:
                continue
            elif grad.is_sparse:
                parameter.grad = (view / divisor).to_sparse(grad.sparse_dim())
            elif is_copied:
                targets.append(grad)
                sources.append(view)
            else:
                torch.div(view, divisor, out=grad)
        if targets:
            torch._foreach_copy_(targets, sources)


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def make_buckets(
    parameters: list[nn.Parameter], comm_dtype: torch.dtype | None = None
) -> list[Bucket]:
    """Group ``parameters`` in reverse order by device and dtype; the last bucket has the extras.

    Gradients are communicated as ``comm_dtype``, the extras never.
    """
    flags = len(parameters)
    groups: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        limit = FIRST_BUCKET_BYTES if len(groups) <= 1 else BUCKET_BYTES
        group = groups[-1] if groups else []
        fits = group and (group[0].dtype, group[0].device) == (parameter.dtype, parameter.device)
        if fits and sum(p.numel() * p.element_size() for p in group) < limit:
            group.append(parameter)
        else:
            groups.append([parameter])
    exact = groups[-1][0].dtype in (torch.float32, torch.float64)
    extras_fit = exact and comm_dtype is None
    whole = groups[: len(groups) - extras_fit]
    buckets = [Bucket(group, group[0], comm_dtype=comm_dtype) for group in whole]
    if extras_fit:
        buckets.append(Bucket(groups[-1], groups[-1][0], flags))
    else:  # flags and losses need more digits than half precision has
        dtype = groups[-1][0].dtype if exact else torch.float32
        buckets.append(Bucket([], groups[-1][0].new_zeros(0, dtype=dtype), flags))
    return buckets
