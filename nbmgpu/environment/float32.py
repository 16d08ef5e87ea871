"""Computing in float32 where torch may use fewer digits: TF32 on GPUs, bfloat16 on some CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

UNITS = (
    "cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn",
)  # fmt: skip
"""What has a precision of its own in torch from 2.9 on, as paths from ``torch.backends``."""


@contextmanager
def full_float32() -> Iterator[None]:
    """Let products of matrices and convolutions in the body have all digits of float32.

    TF32 has ten bits: convolutions of cuDNN use it by default, and products of matrices after
    ``torch.set_float32_matmul_precision("high")``.  The body sees the settings that the cell has
    used: torch raises an exception if they are mixed with the newer ``fp32_precision``.
    """
    units = _units()
    before = [unit.fp32_precision for unit in units]
    older = _older_settings()
    if older is None:
        for unit in units:
            unit.fp32_precision = "ieee"
    else:
        _set_older_settings("highest", False)
    try:
        yield
    finally:
        if older is not None:
            _set_older_settings(*older)
        for unit, precision in zip(units, before, strict=True):
            if unit.fp32_precision != precision:  # of others that the older settings change, too
                unit.fp32_precision = precision


def _units() -> list[Any]:
    try:
        units = [attrgetter(path)(torch.backends) for path in UNITS]
    except AttributeError:
        return []
    return [unit for unit in units if hasattr(unit, "fp32_precision")]


def _older_settings() -> tuple[str, bool] | None:
    """Return precision of products, and whether cuDNN uses TF32; None if others are in use."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set_older_settings(precision: str, allow_tf32: bool) -> None:
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = allow_tf32
