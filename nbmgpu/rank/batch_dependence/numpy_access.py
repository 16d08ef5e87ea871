"""Tensors that leave torch whole, as arrays and lists: no operation tells of that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from nbmgpu.patches import PatchStack

METHODS = ("numpy", "tolist")
"""By which they leave; ``numpy.asarray`` calls the first."""


def look_at_arrays(meet: Callable[[Tensor], None]) -> Callable[[], None]:
    """Call ``meet`` with every tensor that becomes an array or a list; return what ends that."""

    def seen(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def leaving(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            meet(tensor)
            return original(tensor, *args, **kwargs)

        return leaving

    patches = PatchStack()
    for name in METHODS:
        patches.wrap(f"torch.Tensor.{name}", seen)
    return patches.remove
