"""Observes samples picked by their position, ``x[:1]``, in a shard of one sample.

There, ``x[:1]`` and ``x`` are the same, and no operator call tells them apart.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from nbmgpu.patches import PatchStack
from nbmgpu.rank.source_analysis.stack_frames import is_of_library

BY_POSITION = -1
"""The sample that a position stands for: it may be another rank's."""


def selects_by_position(index: Any, dim: int, samples: int) -> bool:
    """Return whether an index picks some samples by their position.

    Args:
        index: of a tensor, as in ``tensor[index]``.
        dim: the batch dimension, counted from the left.
        samples: in the global batch.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) <= dim or any(not isinstance(part, int | slice) for part in parts[:dim]):
        return False  # all samples, or dimensions that are not counted here
    match parts[dim]:
        case bool():
            return False
        case int():
            return True
        case slice() as part:
            return len(range(samples)[part]) < samples
        case list() as positions:
            return all(type(each) is int for each in positions) and len({*positions}) < samples
    return False


def patch_indexing(callback: Callable[[Tensor, Any, Any], None]) -> Callable[[], None]:
    """Call ``callback`` with each tensor that the user's code indexes, the index and the result.

    Returns:
        A function that removes the patch.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def getitem(tensor: Tensor, index: Any) -> Any:
            result = original(tensor, index)
            if not is_of_library(sys._getframe(1).f_code.co_filename):
                callback(tensor, index, result)
            return result

        return getitem

    patches = PatchStack()
    patches.wrap("torch.Tensor.__getitem__", wrap)
    return patches.remove
