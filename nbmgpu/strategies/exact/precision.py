"""Full precision in a trial of a module that computes in half precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def full_precision(value: Any) -> Any:
    """Return a tensor of half precision in full precision, and any other value unchanged."""
    if not _is_half(value):
        return value
    return value.detach().float().requires_grad_(value.requires_grad)


def in_full_precision(module: nn.Module) -> None:
    """Convert all parameters and buffers of half precision in ``module``, a copy."""
    with torch.no_grad():
        for parameter in module.parameters():
            if _is_half(parameter):
                parameter.data = parameter.data.float()
        for each in module.modules():
            for name, buffer in each._buffers.items():
                each._buffers[name] = full_precision(buffer)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.element_size() == 2
