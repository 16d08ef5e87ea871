"""The states of torch's random number generators on this rank."""

from __future__ import annotations

import torch


def generator_devices() -> list[int]:
    """Return the GPUs of this rank, for ``torch.random.fork_rng``."""
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def random_states() -> list[torch.Tensor]:
    """Return the states of the generators of this rank's devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state() for _ in generator_devices())]


def set_random_states(states: list[torch.Tensor]) -> None:
    """Set the generators to ``random_states()`` from before."""
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)
