"""A notebook with a trainer, run twice: on one device, and with its last cell on ranks."""

from __future__ import annotations

import itertools
import linecache
import os
import random
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nbmgpu

_numbers = itertools.count()


@dataclass
class Sides:
    """What the notebook holds afterwards: ``alone`` on one device, ``ranks`` on ranks."""

    alone: dict[str, Any]
    ranks: dict[str, Any]
    run: nbmgpu.Run
    folder: Path

    @property
    def notices(self) -> set[str]:
        """The topics of the run's notices, but for what every run may say."""
        return set(self.run.view.notices) - {"devices", "rank-0-values"}

    def error(self, name: str) -> float:
        """The largest difference between the two sides of what ``name`` holds."""
        return gap(self.alone[name], self.ranks[name])


def execute(source: str, namespace: dict[str, Any]) -> None:
    """Run ``source`` as ipykernel does: its lines can be found, though there is no file."""
    filename = f"<frameworks-{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), namespace)


def both(folder: Path, setup: str, cell: str, ranks: int = 2, **options: Any) -> Sides:
    """Run ``setup`` and ``cell`` on one device, and ``setup`` here with ``cell`` on ranks."""
    setup, cell = textwrap.dedent(setup), textwrap.dedent(cell)
    alone = notebook(folder / "alone", setup)
    execute(cell, alone)
    shared = notebook(folder / "ranks", setup)
    run = nbmgpu.run(cell, shared, gpus=ranks, cpu=True, **options)
    return Sides(alone, shared, run, folder)


def notebook(folder: Path, setup: str) -> dict[str, Any]:
    """Return the namespace of a notebook in ``folder`` that has run ``setup``."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    _forget_accelerate()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    execute(setup, namespace)
    return namespace


def _forget_accelerate() -> None:
    """Let accelerate begin anew: its state belongs to the process, not to a notebook."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def gap(a: Any, b: Any) -> float:
    """Return the largest difference between numbers at the same places of ``a`` and ``b``."""
    if isinstance(a, torch.nn.Module):
        a, b = a.state_dict(), b.state_dict()
    if isinstance(a, torch.optim.Optimizer):
        a, b = a.state_dict()["state"], b.state_dict()["state"]
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (a.keys(), b.keys())
        return max((gap(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list | tuple):
        assert len(a) == len(b), (a, b)
        return max((gap(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, torch.Tensor | np.ndarray | np.generic | float | int):
        x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        assert x.shape == y.shape, (x.shape, y.shape)
        gaps = np.abs(x - y)[~(np.isnan(x) & np.isnan(y))]
        return float(np.nan_to_num(gaps, nan=np.inf).max()) if gaps.size else 0.0
    assert a == b, (a, b)
    return 0.0


CLOCK = ("runtime", "per_second", "preparation_time")


def logged(trainer: Any) -> list[dict[str, Any]]:
    """Return a trainer's log without what a clock has measured."""
    history = trainer.state.log_history
    return [{k: v for k, v in row.items() if not k.endswith(CLOCK)} for row in history]
