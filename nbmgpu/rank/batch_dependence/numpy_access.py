"""Observes tensors that leave torch as NumPy arrays or lists, which no operator call reveals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from nbmgpu.patches import PatchStack

EXPORT_METHODS = ("numpy", "tolist")
"""``numpy.asarray`` calls the first."""


def patch_array_exports(callback: Callable[[Tensor], None]) -> Callable[[], None]:
    """Call ``callback`` with every tensor that is converted to an array or a list.

    Returns:
        A function that removes the patches.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def export(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            callback(tensor)
            return original(tensor, *args, **kwargs)

        return export

    patches = PatchStack()
    for name in EXPORT_METHODS:
        patches.wrap(f"torch.Tensor.{name}", wrap)
    return patches.remove
