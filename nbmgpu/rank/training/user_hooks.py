"""Finds hooks of the user that see gradients: in a rank, those of its own loss."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices

if TYPE_CHECKING:
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.reporting.recorder import Recorder

LIBRARIES = {"torch", "nbmgpu", "deepspeed", "accelerate"}
"""Packages whose hooks belong to the distribution of a model."""


def install(progress: TrainingProgress, recorder: Recorder) -> None:
    """Report hooks that the cell registers on results of its steps, in the rest of this process."""
    register: Any = Tensor.register_hook

    @functools.wraps(register)
    def register_hook(tensor: Tensor, hook: Any) -> Any:
        of_step = progress.has_part and not tensor.is_leaf
        if of_step and not _is_of_library(sys._getframe(1).f_globals.get("__name__")):
            recorder.notice("tensor-hooks", notices.TENSOR_HOOKS)
        return register(tensor, hook)

    PatchStack().replace("torch.Tensor.register_hook", register_hook)


def on_modules(roots: Iterable[nn.Module]) -> bool:
    """Return whether a module in ``roots`` has a backward hook of the user."""
    modules = (module for root in roots for module in root.modules())
    hooks = (h for m in modules for h in (*m._backward_hooks.values(), *_pre_hooks(m).values()))
    return not all(_is_of_library(getattr(hook, "__module__", "")) for hook in hooks)


def _is_of_library(module: object) -> bool:
    return str(module).partition(".")[0] in LIBRARIES


def _pre_hooks(module: nn.Module) -> dict[int, Any]:
    found: dict[int, Any] = getattr(module, "_backward_pre_hooks", {})  # not in old pickles
    return found
