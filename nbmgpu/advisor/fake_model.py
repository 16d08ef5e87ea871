"""Copies of a model with fake tensors, which have shapes but no data."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .memory_tracker import attribute_tensors


def fake_copy(model: nn.Module, fake_mode: Any) -> nn.Module:
    """Copy ``model`` in training mode, with fake tensors on the CPU and without hooks."""
    if any(is_lazy(p) for p in model.parameters()):
        raise ValueError("the model has lazy modules; run a forward pass to give them shapes")
    memo: dict[int, Any] = {}
    with fake_mode:
        for tensor in (*model.parameters(), *model.buffers(), *attribute_tensors(model)):
            if id(tensor) not in memo:
                memo[id(tensor)] = _fake_like(tensor)
    fake_model: nn.Module = copy.deepcopy(model, memo)
    for module in fake_model.modules():
        module._forward_hooks.clear()
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
        for key, hook in list(module._forward_pre_hooks.items()):
            if not type(hook).__module__.startswith("torch."):  # keep weight_norm and the like
                del module._forward_pre_hooks[key]
    return fake_model.train()


def _fake_like(tensor: Tensor) -> Tensor:
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


def enable_checkpointing(model: Any) -> None:
    """Checkpoint the same blocks as ``--checkpointing`` does."""
    from torch.utils.checkpoint import checkpoint

    from nbmgpu.strategies.repeated_blocks import blocks

    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    for block in blocks(model):
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )
