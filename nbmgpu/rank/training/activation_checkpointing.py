"""``--checkpointing``: blocks recompute their activations in the backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbmgpu.strategies.forward_patch import ForwardPatch, ForwardWrapper
from nbmgpu.strategies.repeated_blocks import blocks


class ActivationCheckpointing:
    """Recomputes the activations of a model's blocks instead of keeping them."""

    def __init__(self, forward: ForwardPatch) -> None:
        """Wrap blocks by ``forward``."""
        self._forward = forward
        self._undo: list[Callable[[], None]] = []

    def apply(self, root: nn.Module) -> bool:
        """Checkpoint the blocks of ``root``; return whether it has any."""
        found = False
        inside: set[nn.Module] = set()
        for module in root.modules():
            if module in inside:
                continue
            if _supports_checkpointing(module):
                found = True
                inside.update(module.modules())
                self._undo.append(_enable(module))
        for block in blocks(root):
            if block not in inside:
                found = True
                self._forward.add(block, _checkpointing(block))
        return found

    def release(self) -> None:
        """Undo the changes of models that checkpoint their own layers."""
        for undo in self._undo:
            undo()
        self._undo.clear()


def _checkpointing(block: nn.Module) -> ForwardWrapper:
    reference = weakref.ref(block)  # the wrapper is kept as long as the block, and no longer

    def wrapper(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        block = reference()
        if block is None or not block.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return wrapper


def _supports_checkpointing(module: nn.Module) -> bool:
    """Return whether ``module`` is a model of transformers that checkpoints its layers."""
    return bool(getattr(module, "supports_gradient_checkpointing", False)) and hasattr(
        module, "gradient_checkpointing_enable"
    )


def _enable(model: Any) -> Callable[[], None]:
    """Let a model of transformers checkpoint its layers; return a function that undoes it.

    The model knows what must not run twice, such as filling a key-value cache.
    """
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return lambda: None
    # transformers 5 has renamed both methods.
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    before = WeakKeyDictionary({module: set(vars(module)) for module in model.modules()})
    getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
    hooked = any(
        name.startswith("_require_grads_hook") for name in vars(model).keys() - before[model]
    )

    reference = weakref.ref(model)

    def undo() -> None:
        model = reference()
        if model is None:  # the cell has deleted it
            return
        getattr(model, f"{kind}_checkpointing_disable")()
        if hooked:
            model.disable_input_require_grads()
        for module in model.modules():
            for name in vars(module).keys() - before.get(module, vars(module).keys()):
                delattr(module, name)

    return undo
