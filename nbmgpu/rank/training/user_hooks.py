"""Hooks of the user's that gradients pass through: they see what a rank's own loss gives."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices

if TYPE_CHECKING:
    from nbmgpu.rank.session import Session

OTHERS = {"torch", "nbmgpu", "deepspeed", "accelerate"}
"""Packages whose hooks are means of sharing a model."""


def install(session: Session) -> None:
    """Tell of hooks that the cell puts on what its steps compute, for the rest of this process."""
    register: Any = Tensor.register_hook

    @functools.wraps(register)
    def register_hook(tensor: Tensor, hook: Any) -> Any:
        in_step = session.share is not None and session.share.is_partial
        if in_step and not tensor.is_leaf and not _is_others(sys._getframe(1).f_globals):
            session.recorder.notice("tensor-hooks", notices.TENSOR_HOOKS)
        return register(tensor, hook)

    PatchStack().replace("torch.Tensor.register_hook", register_hook)


def on_modules(roots: Iterable[nn.Module]) -> bool:
    """Tell whether a module has a hook of the user's that its gradients pass through."""
    modules = (module for root in roots for module in root.modules())
    hooks = (h for m in modules for h in (*m._backward_hooks.values(), *_before(m).values()))
    return not all(_is_others({"__name__": getattr(hook, "__module__", "")}) for hook in hooks)


def _is_others(module: dict[str, Any]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in OTHERS


def _before(module: nn.Module) -> dict[int, Any]:
    found: dict[int, Any] = getattr(module, "_backward_pre_hooks", {})  # not in old pickles
    return found
