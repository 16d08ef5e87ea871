"""The random state of the current GPU, also while CUDA is not initialized.

Of other accelerators than CUDA and ROCm, the state is that of an initialized device.

Until then torch queues seeds.  A state that comes before them would be lost, so it is queued as a
seed: the last one counts, as it does on an initialized device.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from .accelerator import CUDA, initialized_module


@dataclass(frozen=True, eq=False)
class _QueuedState:
    """Sets the state when CUDA is initialized."""

    state: Tensor

    def __call__(self) -> None:
        torch.cuda.set_rng_state(self.state)


def get_state() -> Tensor | None:
    """Return the state, of dtype uint8; CUDA's has 16 bytes.  This does not initialize CUDA.

    Returns:
        None if the device is not CUDA's, and is not initialized.
    """
    kind, module = initialized_module()
    if module is not None:
        state: Tensor = module.get_rng_state()
        return state
    if kind not in (CUDA, "cpu"):
        return None
    calls = torch.cuda._lazy_seed_tracker.get_calls()
    last = calls[-1][0] if calls else None
    return last.state if isinstance(last, _QueuedState) else state_of_seed(torch.initial_seed())


def set_state(state: Tensor) -> None:
    """Set the state, or queue it until CUDA is initialized."""
    now = get_state()
    if now is not None and torch.equal(state, now):
        return  # to set it would also set the state of cuDNN's dropout anew
    kind, module = initialized_module()
    if kind not in (CUDA, "cpu"):
        torch.get_device_module(kind).set_rng_state(state)
    elif module is not None:
        module.set_rng_state(state)
    else:
        torch.cuda._lazy_call(_QueuedState(state), seed_all=True)


def state_of_seed(seed: int) -> Tensor:
    """Return the state that ``torch.manual_seed(seed)`` sets.

    It is a seed and an offset into its numbers, of 64 bits each: see ``get_state`` in PyTorch's
    ``CUDAGeneratorImpl.cpp``.
    """
    return torch.frombuffer(bytearray(struct.pack("=Qq", seed % 2**64, 0)), dtype=torch.uint8)
