"""How long a block takes: measured on its owner, with the arguments of its first call."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from nbmgpu.environment import random_state
from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.module_copy import ModuleState, copy_for_trial

REPEATS = 3
"""Calls of which the fastest counts: the first ones load kernels and allocate memory."""


@dataclass(frozen=True)
class BlockTime:
    """What a measurement has found out about a block.

    Attributes:
        seconds: of a forward and a backward pass of the whole batch.
        keeps_objects: whether a call leaves all attributes in place but numbers and buffers.  Other
            attributes that a call replaces are on the block's owner only.
    """

    seconds: float
    keeps_objects: bool


def measure(module: nn.Module, leaves: list[Any], spec: Any) -> BlockTime:
    """Measure a copy of a block, which the calls may change.

    Args:
        module: the block, with the parameters of this rank.
        leaves, spec: the arguments of the call.
    """
    copied = copy_for_trial(module)
    before = ModuleState(copied)
    with random_state.kept(), outside_of_checkpoints(), torch.enable_grad():
        seconds = min(_seconds(copied, leaves, spec) for _ in range(REPEATS))
    return BlockTime(seconds, before.has_objects_of(copied))


def _seconds(module: nn.Module, leaves: list[Any], spec: Any) -> float:
    forward = type(module).forward.__get__(module)
    starts = [_start(leaf) for leaf in leaves]
    # A block may change its input in place, which must not be a leaf of the graph.
    inputs = [x.clone() if isinstance(x, Tensor) else x for x in starts]
    args, kwargs = tree_unflatten(inputs, spec)
    begin = _now(leaves)
    ends = [x for x in tree_leaves(forward(*args, **kwargs)) if _has_graph(x)]
    wanted = [x for x in (*starts, *module.parameters()) if _requires_grad(x)]
    if ends and wanted:
        torch.autograd.grad(ends, wanted, list(map(torch.ones_like, ends)), allow_unused=True)
    return _now(leaves) - begin


def _start(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.is_floating_point())


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def _now(leaves: list[Any]) -> float:
    """Return the time in seconds, when a GPU has done its work."""
    if any(isinstance(leaf, Tensor) and not leaf.is_cpu for leaf in leaves):
        torch.accelerator.synchronize()
    return time.perf_counter()
