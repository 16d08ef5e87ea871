"""Layers inside of a checkpoint, which computes them again in the backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def is_checkpointed() -> bool:
    """Whether saved tensors are packed: a checkpoint computes them again, in the same order."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def outside_of_checkpoints() -> AbstractContextManager[None]:
    """Save the body's tensors as they are: one rank alone would compute them again."""
    if not is_checkpointed():
        return nullcontext()  # a hook costs a call of Python per saved tensor
    return saved_tensors_hooks(_detached, _detached)


def _detached(tensor: Tensor) -> Tensor:
    # An operation that saved its own output as it is would keep itself, and its graph, alive.
    return tensor.detach()
