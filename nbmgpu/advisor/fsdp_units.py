"""The pieces in which ``fsdp`` and ``zero2`` would gather a model; decided where they decide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Units:
    """Bytes of parameters by what FSDP2 does with them.

    Attributes:
        sharded: all that is dealt out to ranks.
        root: of that, what no unit has; it stays gathered through a forward and backward pass.
        largest: the largest unit, which comes and goes.
        kept: what stays whole on every rank.
    """

    sharded: int
    root: int
    largest: int
    kept: int


def find_units(model: nn.Module, named: tuple[str, ...] = ()) -> Units:
    """Find out in which pieces ``model`` would be gathered, with the classes ``named``."""
    from nbmgpu.strategies.fsdp.wrap_policy import sharding_plans

    first = next(model.parameters(), None)
    if first is None:
        return Units(0, 0, 0, 0)
    whole = {id(p): p.numel() * p.element_size() for p in model.parameters()}
    sizes: list[int] = []
    root = 0
    seen: set[int] = set()
    for plan in sharding_plans([model], first.device, named):
        seen |= {id(p) for p in plan.replicated}
        for module in (*plan.units, plan.root):
            mine = {id(p) for p in module.parameters()} - seen
            seen |= mine
            size = sum(whole[key] for key in mine)
            if module is plan.root:
                root += size
            else:
                sizes.append(size)
    sharded = root + sum(sizes)
    return Units(sharded, root, max(sizes, default=0), sum(whole.values()) - sharded)
