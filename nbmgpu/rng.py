"""Random states: Python's, NumPy's and torch's, taken and put back together."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RandomState:
    """The states of the global generators; None for a library that is not imported."""

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
    random.setstate(state.python)
    if state.numpy is not None:
        import numpy as np

        np.random.set_state(state.numpy)
    if state.torch is not None:
        import torch

        torch.set_rng_state(state.torch)


def seed(value: int) -> None:
    """Seed Python, NumPy and torch, on all devices, as ``seed_everything`` does elsewhere."""
    import numpy as np
    import torch

    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
