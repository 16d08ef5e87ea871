"""The random number generators of this rank: torch's, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

RandomState = tuple[Any, ...]
"""The states of all generators."""


def generator_devices() -> list[int]:
    """Return the GPUs of this rank, for ``torch.random.fork_rng``."""
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def random_state() -> RandomState:
    """Return the states of all generators; equal ones are equal."""
    numpy = sys.modules.get("numpy")
    return (
        *(state.numpy().tobytes() for state in torch_state()),
        random.getstate(),
        None if numpy is None else _numpy_state(numpy),
    )


def torch_state() -> list[torch.Tensor]:
    """Return the states of torch's generators."""
    return [
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state() for _ in generator_devices()),
    ]


def set_random_state(state: RandomState) -> None:
    """Set all generators to a ``random_state()`` of this rank or another one."""
    torch.set_rng_state(_tensor(state[0]))
    for each in state[1:-2]:
        torch.cuda.set_rng_state(_tensor(each))
    random.setstate(state[-2])
    numpy = sys.modules.get("numpy")
    if numpy is not None and state[-1] is not None:
        name, keys, *rest = state[-1]
        numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *rest))


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Let the body draw random numbers, and restore the generators."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _numpy_state(numpy: Any) -> tuple[Any, ...]:
    name, keys, *rest = numpy.random.get_state()
    return name, keys.tobytes(), *rest


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
