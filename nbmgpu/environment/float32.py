"""Computing in float32 where torch may use fewer digits: TF32 on GPUs, bfloat16 on some CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Let products of matrices and convolutions in the body have all digits of float32.

    TF32 has ten bits: convolutions of cuDNN use it by default, and products of matrices after
    ``torch.set_float32_matmul_precision("high")``.
    """
    backends = torch.backends
    try:
        precision = torch.get_float32_matmul_precision()
        settings: list[tuple[Any, str, Any]] = [(backends.cudnn, "allow_tf32", False)]
    except RuntimeError:  # the newer settings are in use, and torch refuses to mix both kinds
        precision = None
        units: tuple[Any, ...] = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn  # type: ignore[attr-defined]
        settings = [(unit, "fp32_precision", "ieee") for unit in units]
    before = [getattr(unit, name) for unit, name, _ in settings]
    if precision is not None:
        torch.set_float32_matmul_precision("highest")
    for unit, name, value in settings:
        setattr(unit, name, value)
    try:
        yield
    finally:
        for (unit, name, _), value in zip(settings, before, strict=True):
            setattr(unit, name, value)
        if precision is not None:
            torch.set_float32_matmul_precision(precision)
