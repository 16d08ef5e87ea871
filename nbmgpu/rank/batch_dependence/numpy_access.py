"""Observes tensors that leave torch as NumPy arrays or lists, and those that are made of such.

No operator call reveals either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from nbmgpu.patches import PatchStack

EXPORT_METHODS = ("numpy", "tolist")
"""``numpy.asarray`` calls the first."""

IMPORTS = ("torch.from_numpy", "torch.tensor", "torch.as_tensor")


def patch_array_access(
    on_export: Callable[[Tensor], None], on_import: Callable[[Tensor], None]
) -> Callable[[], None]:
    """Call ``on_export`` with every tensor that is converted to an array or a list.

    Args:
        on_export: gets the tensor.
        on_import: gets every tensor that is made of an array, of a list or of a number.

    Returns:
        A function that removes the patches.
    """

    def wrap_import(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Tensor:
            tensor = original(*args, **kwargs)
            on_import(tensor)
            return tensor

        return make

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def export(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            on_export(tensor)
            return original(tensor, *args, **kwargs)

        return export

    patches = PatchStack()
    for name in EXPORT_METHODS:
        patches.wrap(f"torch.Tensor.{name}", wrap)
    for target in IMPORTS:
        patches.wrap(target, wrap_import)
    return patches.remove
