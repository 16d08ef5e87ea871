"""Random states: Python's, NumPy's and torch's, taken and put back together."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RandomState:
    """The states of the global generators; None for one that is not imported, or not meant."""

    python: Any
    numpy: Any
    torch: Any


def capture() -> RandomState:
    """Return the states of now.  CUDA generators are not touched: that would start CUDA."""
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


def go_on(state: RandomState, since: RandomState) -> None:
    """Set the generators to ``state`` that nobody has drawn from ``since``: others go on."""
    now = capture()
    untouched = {
        name: getattr(state, name) if _same(getattr(now, name), getattr(since, name)) else None
        for name in ("python", "numpy", "torch")
    }
    restore(RandomState(**untouched))


def _same(now: Any, before: Any) -> bool:
    """Compare two states of one library, which may have been imported in between."""
    if before is None:
        return True
    if hasattr(now, "numpy"):  # torch's
        now, before = now.numpy(), before.numpy()
    if isinstance(now, tuple):
        return len(now) == len(before) and all(map(_same, now, before))
    return bool((now == before).all()) if hasattr(now, "all") else bool(now == before)


def seed(value: int) -> None:
    """Seed Python, NumPy and torch, on all devices, as ``seed_everything`` does elsewhere."""
    import numpy as np
    import torch

    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
