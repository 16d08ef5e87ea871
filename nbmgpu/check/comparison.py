"""Runs a cell on one device and on ranks, and compares what both leave in the notebook."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nbmgpu
from nbmgpu.environment.float32 import full_float32

from .check import CheckSkipped, Finding
from .setting import Setting

RTOL, ATOL = 1e-5, 1e-6
"""Tolerances for float32, as in the test suite."""

TIMEOUT = 120
"""Seconds after which a run is stopped."""

PRELUDE = """
import copy, math, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("{device}")
X, Y = torch.randn(60, 16), torch.randint(0, 4, (60,))
dataset = TensorDataset(X, Y)
loader = DataLoader(dataset, batch_size=8)
losses = []
"""
"""The first cell of each notebook: 60 samples in 8 batches, the last of 4."""


@dataclass(frozen=True)
class Cell:
    """A training cell, and the cell before it.

    Attributes:
        name: what is special about it.
        setup: makes ``model`` and ``opt`` on ``device``.
        source: the cell that runs on ranks.
        watched: names of what must be equal afterwards.
        tolerance: multiplies the tolerances of float32.
        quick: whether ``--quick`` includes it.
    """

    name: str
    setup: str
    source: str
    watched: tuple[str, ...] = ("model", "losses")
    tolerance: float = 1.0
    quick: bool = False


def compare(cell: Cell, setting: Setting, ranks: int = 2, **options: Any) -> Finding:
    """Run ``cell`` both ways; return the largest difference.

    Raises:
        AssertionError: something differs by more than the tolerance.
        Exception: what the cell, or nbmgpu, raises.
    """
    with float32_precision():
        alone = notebook(cell, setting)
        _run_alone(cell, alone, setting)
        expected = {name: numbers(alone[name]) for name in cell.watched}
        del alone
        found = notebook(cell, setting)
        run_on_ranks(cell.source, found, setting, ranks, **options)
    worst, place = 0.0, ""
    for name in cell.watched:
        for index, (a, b) in enumerate(zip(expected[name], numbers(found[name]), strict=True)):
            error = float(((a - b).abs() / (ATOL + RTOL * a.abs())).max()) if a.numel() else 0.0
            if not error <= worst:  # also NaN
                worst, place = error, f"{name}[{index}]"
    share = worst / cell.tolerance
    assert share <= 1, f"{place} differs by {share:.3g} times the tolerance"
    return Finding(f"within {share:.2f} of the tolerance", {"of_tolerance": round(share, 4)})


def _run_alone(cell: Cell, namespace: dict[str, Any], setting: Setting) -> None:
    """Run ``cell`` on one device; other accelerators than CUDA may lack what it needs.

    Raises:
        CheckSkipped: such a one cannot run it, so there is nothing to compare with.
    """
    try:
        exec(compile(cell.source, "<cell>", "exec"), namespace)
    except Exception as error:
        if not setting.gpus or setting.on_cuda:
            raise
        what = f"{type(error).__name__}: {error}"
        raise CheckSkipped(f"one {setting.kind} device alone raises {what}") from error


def notebook(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Return the namespace of a notebook before its training cell."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(PRELUDE.format(device=setting.device), namespace)
    exec(cell.setup, namespace)
    return namespace


def run_on_ranks(
    source: str, namespace: dict[str, Any], setting: Setting, ranks: int = 2, **options: Any
) -> nbmgpu.Run:
    """Run ``source`` on ranks, without output; raise what ``nbmgpu.run`` raises."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = nbmgpu.run(
            source, namespace, **{**setting.options(ranks), "timeout": TIMEOUT, **options}
        )
    assert run is not None
    return run


def numbers(value: Any) -> list[Tensor]:
    """Return all numbers that ``value`` holds, as float64 tensors on the CPU."""
    if isinstance(value, nn.Module):
        return [number for tensor in value.state_dict().values() for number in numbers(tensor)]
    if isinstance(value, Tensor):
        return [value.detach().cpu().double().clone()]
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers(item)]
    return [torch.tensor(value, dtype=torch.float64)]


@contextlib.contextmanager
def float32_precision() -> Iterator[None]:
    """Compute in float32, and allow deterministic algorithms of cuBLAS."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with full_float32():
        yield
