"""The global random states of Python, NumPy and torch, captured and restored together."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RandomState:
    """The states of the global generators; None for one that is not imported, or not to be set."""

    python: Any
    numpy: Any
    torch: Any


def capture() -> RandomState:
    """Return the current states.  CUDA generators are left out: reading them initializes CUDA."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return RandomState(
        random.getstate(),
        numpy.random.get_state() if numpy else None,
        torch.get_rng_state() if torch else None,
    )


def restore(state: RandomState) -> None:
    """Set the global generators to ``state``."""
    if state.python is not None:
        random.setstate(state.python)
    if state.numpy is not None:
        import numpy as np

        np.random.set_state(state.numpy)
    if state.torch is not None:
        import torch

        torch.set_rng_state(state.torch)


def restore_unchanged(state: RandomState, since: RandomState) -> None:
    """Set those generators to ``state`` that have not been drawn from ``since``."""
    now = capture()
    unchanged = {
        name: getattr(state, name) if _same(getattr(now, name), getattr(since, name)) else None
        for name in ("python", "numpy", "torch")
    }
    restore(RandomState(**unchanged))


def _same(now: Any, before: Any) -> bool:
    """Return whether two states of a library are equal; it may have been imported in between."""
    if before is None:
        return True
    if hasattr(now, "numpy"):  # torch's
        now, before = now.numpy(), before.numpy()
    if isinstance(now, tuple):
        return len(now) == len(before) and all(map(_same, now, before))
    return bool((now == before).all()) if hasattr(now, "all") else bool(now == before)


def seed(value: int) -> None:
    """Seed Python, NumPy and torch on all devices, as Lightning's ``seed_everything`` does."""
    import numpy as np
    import torch

    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
