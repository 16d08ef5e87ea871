"""The global random states of Python, NumPy and torch, captured and restored together."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, eq=False)
class RandomState:
    """The states of the global generators; None for one that is not imported, or not to be set.

    Attributes:
        python, numpy: those of ``random`` and ``numpy.random``.
        torch: that of torch's CPU generator.
        gpu: that of the current GPU, see ``gpu_generator``.
    """

    python: Any
    numpy: Any
    torch: Any
    gpu: Any

    def __eq__(self, other: object) -> bool:
        """Whether all states are the same."""
        return isinstance(other, RandomState) and _same(_values(self), _values(other))

    __hash__ = None  # type: ignore[assignment]


def capture() -> RandomState:
    """Return the current states; this does not initialize CUDA."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return RandomState(
        random.getstate(),
        numpy.random.get_state() if numpy else None,
        *(torch_states() if torch else (None, None)),
    )


def torch_states() -> tuple[Any, Any]:
    """Return the states of torch's generators: of the CPU and of the current GPU."""
    import torch

    from . import gpu_generator

    return torch.get_rng_state(), gpu_generator.get_state()


def is_torch_at(states: tuple[Any, Any]) -> bool:
    """Return whether torch's generators have the ``states`` of ``torch_states()``."""
    return _same(states, torch_states())


def restore_torch(states: tuple[Any, Any]) -> None:
    """Set torch's generators to ``torch_states()``."""
    restore(RandomState(None, None, *states))


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
    if state.gpu is not None:
        from . import gpu_generator

        gpu_generator.set_state(state.gpu)


def restore_unchanged(state: RandomState, since: RandomState) -> None:
    """Set those generators to ``state`` that have not been drawn from ``since``."""
    now = capture()
    restore(
        RandomState(
            # A library may have been imported in between.
            *(
                value if before is None or _same(here, before) else None
                for value, before, here in zip(*map(_values, (state, since, now)), strict=True)
            )
        )
    )


@contextmanager
def kept() -> Iterator[None]:
    """Let the body draw random numbers, and restore the generators."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


def seed(value: int) -> None:
    """Seed Python, NumPy and torch on all devices, as Lightning's ``seed_everything`` does."""
    import numpy as np
    import torch

    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def _values(state: RandomState) -> tuple[Any, ...]:
    return tuple(getattr(state, each.name) for each in fields(state))


def _same(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    same = first == second
    return bool(same.all()) if hasattr(same, "all") else bool(same)
