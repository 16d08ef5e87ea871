"""The size of the states that a checkpoint of models and optimizers has."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from nbmgpu.strategies.base import Unit


def state_bytes(units: Iterable[Unit]) -> int:
    """Return about how many bytes the states of models and optimizers have.

    Each optimizer state has as many bytes as its parameter; a rank may have some of them only.
    """
    nbytes = 0
    for unit in units:
        states = [state for each in unit.optimizers for state in each.state.values()]
        copies = max((sum(map(_is_like_parameter, each.values())) for each in states), default=0)
        for parameter in unit.parameters():
            size = tensor_bytes(parameter)
            nbytes += size * (1 + copies) if parameter.requires_grad else size
        nbytes += sum(map(tensor_bytes, unit.buffers()))
    return nbytes


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the size of a tensor; a sharded one is not gathered."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.numel() * tensor.element_size()


def _is_like_parameter(state: object) -> bool:
    return isinstance(state, torch.Tensor) and state.dim() > 0
