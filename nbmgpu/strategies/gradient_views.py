"""Gradients that are views of the buckets in which they are reduced (``--bucket-views``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.errors import StrategyError, format_message

if TYPE_CHECKING:
    from torch import nn

    from .buckets import Bucket


class GradientViews:
    """Makes gradients views of the buckets, except those that the cell has assigned itself."""

    def __init__(self, buckets: list[Bucket]) -> None:
        """Make no view before the first pass."""
        self._buckets = buckets
        self._index = {id(p): i for b in buckets for i, p in enumerate(b.parameters)}
        self._allowed: set[int] = set()

    def begin(self) -> None:
        """Find the gradients that may become views in this pass."""
        self._allowed.clear()
        for bucket in self._buckets:
            bucket.reallocate_if_referenced()
            for view, parameter in zip(bucket.views, bucket.parameters, strict=True):
                if parameter.grad is None or parameter.grad is view:
                    self._allowed.add(id(parameter))

    def make_view(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """Make the gradient of ``parameter``, which has just arrived, a view of ``bucket``.

        Raises:
            StrategyError: the bucket is already being reduced.
        """
        if bucket.work is not None:
            what = "A gradient arrived twice in one backward pass, the second time too late"
            allowed = "A reentrant checkpoint does so, and --bucket-views cannot separate the two"
            raise StrategyError(format_message(what, allowed, "%%mgpu without --bucket-views"))
        grad = parameter.grad
        plain = grad is not None and not grad.is_sparse and not grad.requires_grad
        if plain and id(parameter) in self._allowed:
            bucket.make_gradient_view(self._index[id(parameter)])
