"""Ranks make sure that they run the same modules, before they wait for each other in vain."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from nbmgpu.errors import StrategyError, compose

PATIENCE = timedelta(minutes=5)
"""How long a rank waits for the others at the same module."""


class Agreement:
    """A channel of its own over the hosts' memory, so that no GPU is waited for."""

    def __init__(self, strategy: str) -> None:
        """Open the channel; collective."""
        self.strategy = strategy
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def on(self, place: int, name: str) -> None:
        """Make sure that all ranks are at ``place``; collective.

        Raises:
            StrategyError: one is elsewhere, or does not come.
        """
        both = torch.tensor([place, -place])
        try:
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self.group)
        except RuntimeError as error:
            raise self.refusal(name) from error
        if int(both[0]) != -int(both[1]):
            raise self.refusal(name)

    def refusal(self, name: str) -> StrategyError:
        """Return why ranks cannot go on."""
        return StrategyError(
            compose(
                f"Ranks run different modules: not all of them are at {name}",
                f"{self.strategy} gathers a module's parameters on all ranks at once; which "
                "modules run must not depend on a rank's share of the data",
                "%%mgpu --strategy ddp, or --fsdp-units with a module that always runs",
            )
        )
