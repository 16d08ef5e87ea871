"""Finds rows of samples that depend on their position in the shard, or on its size.

A tensor that a step makes for its shard, such as ``torch.arange(len(x))``, begins anew in each of
them, and ``out / len(x)`` has another divisor.  Rows that are computed with these are not those of
the batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from nbmgpu.rank.source_analysis.stack_frames import user_frame

from .op_call import OpCall
from .tags import Batched


class ShardDependence:
    """The tensors of a step whose rows depend on the shard."""

    def __init__(self, predates_step: Callable[[torch.Tensor], bool]) -> None:
        """Begin without any; tensors that ``predates_step`` are the same on all ranks."""
        self._predates_step = predates_step
        self._found: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` depends on the shard."""
        return tensor in self._found

    def observe(self, call: OpCall, outputs: Sequence[Any]) -> None:
        """Add the outputs of a call if they depend on the shard."""
        batched = [tag for tag in call.tags if isinstance(tag, Batched)]
        sources = any(tensor in self._found for tensor in call.tensors)
        if sources or any(self._uses_shard(call, tag) for tag in batched):
            self._found.update({out: True for out in outputs if isinstance(out, torch.Tensor)})

    def _uses_shard(self, call: OpCall, tag: Batched) -> bool:
        samples = len(tag.samples)
        other = call.arguments.get("other")
        is_size = isinstance(other, int | float) and other in (samples, 1 / samples)
        # Libraries have such numbers of their own, such as the 0.5 of an activation.
        if is_size and user_frame(sys._getframe()) is not None:
            return True
        if not call.is_pointwise and call.name not in ("cat", "stack"):
            return False  # the dimensions of another operand have other meanings, as in products
        untagged = (x for x, of in zip(call.tensors, call.tags, strict=True) if of is None)
        return any(self._is_made_for(tensor, tag, samples) for tensor in untagged)

    def _is_made_for(self, tensor: torch.Tensor, tag: Batched, samples: int) -> bool:
        """Return whether a step has made ``tensor`` of their positions, or of their number."""
        if tensor.ndim < -tag.dim or tensor.shape[tag.dim] != samples * tag.block_size:
            return False
        if self._predates_step(tensor):
            return False
        if not tensor.numel() or tensor.is_complex():
            return False
        value = float(tensor.flatten()[0])
        if samples == 1:  # positions begin at one value, and what is broadcast has several
            return bool((tensor == value).all())
        if bool((tensor != tensor.narrow(tag.dim, 0, 1)).any()):
            return True
        return math.isclose(value, samples) or math.isclose(value, 1 / samples, rel_tol=1e-6)
