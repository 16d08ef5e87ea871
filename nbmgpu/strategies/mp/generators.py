"""Random numbers of one device's generator, on all devices."""

from __future__ import annotations

import torch


class SharedGenerator:
    """One random state, which the default generators of all GPUs hand on to each other.

    So dropout draws the numbers of a single GPU, if the GPUs are of one model: how many numbers a
    kernel draws depends on the number of multiprocessors.  CPUs have one generator anyway.

    Attributes:
        device: whose generator has the state.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with the generator of ``device``."""
        self.device = device

    def move_to(self, device: torch.device) -> None:
        """Let the generator of ``device`` go on from here."""
        if device != self.device:
            if device.type == "cuda":
                state = torch.cuda.get_rng_state(self.device)  # on the host, without waiting
                torch.cuda.set_rng_state(state, device)
            self.device = device
