"""How strategies tell where the samples are in what a layer of theirs has computed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

CopyTag = Callable[[Tensor, Tensor], None]
"""Says that the first tensor has the samples that the second one has, along the same dimension."""
