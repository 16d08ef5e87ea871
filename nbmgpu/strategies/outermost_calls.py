"""Calls of modules that are not inside of another module's call: those of a cell's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from nbmgpu.patches import PatchStack

OnCall = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
"""Is told a module and its arguments, before the call."""


class OutermostCalls:
    """Observes the outermost calls in forward passes that record gradients, of plain modules."""

    def __init__(self, on_call: OnCall) -> None:
        """Tell ``on_call`` of each such call, once installed."""
        self._on_call = on_call
        self._inside = False
        self._patches = PatchStack()

    def install(self) -> None:
        """Patch ``nn.Module.__call__``."""
        plain = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not torch.is_grad_enabled():
                return plain(module, *args, **kwargs)
            with self.paused():
                is_plain = not (isinstance(module, torch.jit.ScriptModule) or is_compiled(module))
                if is_plain and not (is_transformed() or is_in_backward()):
                    self._on_call(module, args, kwargs)
                return plain(module, *args, **kwargs)

        self._patches.replace("torch.nn.Module.__call__", call)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Observe no calls in the body."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def remove(self) -> None:
        """Remove the patch."""
        self._patches.remove()


def is_transformed() -> bool:
    """Whether the code runs inside of a transformation of ``torch.func``, such as ``vmap``."""
    return torch._C._functorch.maybe_current_level() is not None


def is_compiled(module: nn.Module) -> bool:
    """Whether a module has been compiled by ``torch.compile``, or by its own ``compile()``."""
    wraps_another = "_orig_mod" in getattr(module, "_modules", ())  # none before ``__init__``
    return wraps_another or module._compiled_call_impl is not None


def is_in_backward() -> bool:
    """Whether the code runs in a backward pass, such as what a checkpoint computes again."""
    return torch._C._current_graph_task_id() != -1
