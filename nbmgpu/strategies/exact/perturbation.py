"""Calls in which the samples of other ranks are replaced: those of this rank must stay the same.

Two calls with the same samples may agree although samples interact: behind a threshold that the
batch of the trial does not reach, or a branch that it does not take.  Not a number propagates
through nearly every operation, and numbers of a large magnitude pass thresholds and comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nbmgpu.strategies.outcome import is_close, largest_of

from .precision import EPSILON
from .region import BatchRegion, SampleDim

REPLACEMENTS = (float("nan"), 1e30, -1e30)
"""What other samples are replaced by, in one call each."""


def replace_others(leaf: Any, region: BatchRegion, is_split: bool, value: float) -> Any:
    """Return an argument of a module with ``value`` in the samples of other ranks."""
    if not is_split or not leaf.is_floating_point():
        return leaf
    return _replaced(leaf, region, SampleDim(region.dim), value)


@contextmanager
def embeddings_replaced(module: nn.Module, region: BatchRegion, value: float) -> Iterator[None]:
    """Replace embeddings of the samples of other ranks: no index is out of every range."""

    def hook(embedding: nn.Module, args: Any, output: Tensor) -> Tensor:
        if output.dim() <= region.dim or output.shape[region.dim] != region.length:
            return output
        return _replaced(output, region, SampleDim(region.dim), value)

    handles = [
        each.register_forward_hook(hook)
        for each in module.modules()
        if isinstance(each, nn.Embedding)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def depends_on_others(
    outputs: Sequence[Any],
    whole: Sequence[Any],
    places: Sequence[SampleDim | None],
    region: BatchRegion,
) -> bool:
    """Whether this rank's samples have other outputs than in a call with the true other ones.

    Args:
        outputs: the leaves of the output of the call on the whole batch, with others replaced.
        whole: those of the call on the whole batch.
        places: where the samples are in each leaf.
        region: the samples.
    """
    if len(outputs) != len(whole):
        return True
    for output, of_batch, place in zip(outputs, whole, places, strict=True):
        expected, own = of_batch, output
        tensors = isinstance(output, Tensor) and isinstance(of_batch, Tensor)
        if tensors and output.shape == of_batch.shape:
            expected, own = region.part(of_batch, place), region.part(output, place)
        if not is_close(expected, own, largest_of(expected), EPSILON):
            return True
    return False


def _replaced(tensor: Tensor, region: BatchRegion, place: SampleDim, value: float) -> Tensor:
    keep = torch.zeros(tensor.shape[place.dim], dtype=torch.bool, device=tensor.device)
    region.part(keep, SampleDim(0)).fill_(True)
    shape = [-1 if dim == place.dim else 1 for dim in range(tensor.dim())]
    return tensor.masked_fill(~keep.view(shape), value)
