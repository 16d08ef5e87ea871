"""The precision of a trial: rounding must not hide, or look like, a dependence between samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

EPSILON = torch.finfo(torch.float32).eps
"""Rounding that outputs and gradients in a trial may have, relative to the largest."""


def widened(value: Any, dtype: torch.dtype) -> Any:
    """Return a floating point tensor in ``dtype`` if it has fewer digits; any other value as is."""
    if not _is_narrower(value, dtype):
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def widen(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert all parameters and buffers in ``module``, a copy, that have fewer digits."""
    for parameter in module.parameters():
        if _is_narrower(parameter, dtype):
            parameter.data = parameter.data.to(dtype)
    for each in module.modules():
        for name, buffer in each._buffers.items():
            each._buffers[name] = widened(buffer, dtype)


def _is_narrower(value: Any, dtype: torch.dtype) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.element_size() < dtype.itemsize
    )
