"""``--precision bf16`` and ``fp16`` under DeepSpeed: a model in half precision, a cell in full.

DeepSpeed computes with weights in half precision and updates float32 copies of them.
What the cell hands to its modules is rounded on the way in, and what they return is
float32 again, so that a loss is computed as ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""DeepSpeed's names of the half precisions, which are ours, too."""


class Casts:
    """Stands at the doors of modules that DeepSpeed has brought to half precision."""

    def __init__(self, modules: list[nn.Module], half: torch.dtype | None) -> None:
        """Remember the buffers of ``modules``, which will be rounded, too; None: do nothing."""
        self.modules = modules
        self.half = half
        self.handles: list[Any] = []
        every = [m for root in modules for m in root.modules()] if half else []
        self.buffers = [
            (m, name, b) for m in every for name, b in m._buffers.items()
            if b is not None and b.is_floating_point()
        ]  # fmt: skip

    def enter(self) -> None:
        """Round what comes in, widen what goes out."""
        if self.half is None:
            return
        for module in self.modules:
            self.handles += [
                module.register_forward_pre_hook(self._in, with_kwargs=True, prepend=True),
                module.register_forward_hook(self._out),
            ]

    def _in(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        assert self.half is not None
        half = self.half

        def narrow(x: Tensor) -> Tensor:
            return x.to(half) if x.dtype == torch.float32 else x

        found: tuple[Any, Any] = tree_map_only(torch.Tensor, narrow, (args, kwargs))
        return found

    def _out(self, module: nn.Module, args: Any, output: Any) -> Any:
        return tree_map_only(
            torch.Tensor, lambda x: x.float() if x.dtype == self.half else x, output
        )

    def leave(self) -> None:
        """Take the hooks off; buffers that nothing has changed are as they were."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for module, name, buffer in self.buffers:
            now = module._buffers.get(name)
            if now is None or now is buffer:
                continue
            if not torch.equal(buffer.to(now.dtype), now):
                buffer.copy_(now)
            module._buffers[name] = buffer
        self.buffers = []
