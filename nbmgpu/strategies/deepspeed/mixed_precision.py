"""``--precision bf16`` and ``fp16`` under DeepSpeed.

DeepSpeed computes with weights in half precision and updates fp32 master weights.  Inputs of the
modules are cast to half precision, and their outputs back to float32, so that the cell computes
its loss in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


class InputOutputCasts:
    """Hooks that cast inputs and outputs of modules whose weights are in half precision."""

    def __init__(self, modules: list[nn.Module], dtype: torch.dtype | None) -> None:
        """Record the buffers of ``modules``, which DeepSpeed casts too.

        With None for ``dtype``, nothing is cast.
        """
        self.modules = modules
        self.dtype = dtype
        self.handles: list[Any] = []
        inner = [m for root in modules for m in root.modules()] if dtype else []
        self.buffers = [
            (m, name, b) for m in inner for name, b in m._buffers.items()
            if b is not None and b.is_floating_point()
        ]  # fmt: skip

    def install(self) -> None:
        """Register the forward hooks."""
        if self.dtype is None:
            return
        for module in self.modules:
            self.handles += [
                module.register_forward_pre_hook(self._cast_inputs, with_kwargs=True, prepend=True),
                module.register_forward_hook(self._cast_outputs),
            ]

    def _cast_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        assert self.dtype is not None
        dtype = self.dtype

        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.dtype == torch.float32 else x

        result: tuple[Any, Any] = tree_map_only(torch.Tensor, cast, (args, kwargs))
        return result

    def _cast_outputs(self, module: nn.Module, args: Any, output: Any) -> Any:
        return tree_map_only(
            torch.Tensor, lambda x: x.float() if x.dtype == self.dtype else x, output
        )

    def remove(self) -> None:
        """Remove the hooks and restore the buffers; unchanged ones keep their exact values."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for module, name, buffer in self.buffers:
            current = module._buffers.get(name)
            if current is None or current is buffer:
                continue
            if not torch.equal(buffer.to(current.dtype), current):
                buffer.copy_(current)
            module._buffers[name] = buffer
        self.buffers = []
