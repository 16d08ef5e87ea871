"""Sizes of the units that ``fsdp`` and ``zero2`` gather, as their own wrap policy finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class UnitSizes:
    """Bytes of parameters, grouped by how FSDP2 handles them.

    Attributes:
        sharded: all parameters that are sharded over the ranks.
        root: sharded parameters outside of all units.  They stay gathered from the forward
            pass to the end of the backward pass.
        largest: the largest unit, which is gathered and freed again.
        smallest: the smallest unit.
        replicated: parameters that every rank keeps in full.
    """

    sharded: int
    root: int
    largest: int
    smallest: int
    replicated: int


def measure_units(
    model: nn.Module,
    class_names: tuple[str, ...] = (),
    held: Mapping[nn.Parameter, float] | None = None,
) -> UnitSizes:
    """Return the sizes of the units of ``model``.

    Args:
        model: the model to shard.
        class_names: module classes that form units, as in ``--fsdp-units``.
        held: fractions of the parameters that are split over other ranks before.
    """
    from nbmgpu.strategies.fsdp.wrap_policy import sharding_plans

    first = next(model.parameters(), None)
    if first is None:
        return UnitSizes(0, 0, 0, 0, 0)
    held = held or {}
    nbytes = {
        id(p): round(p.numel() * p.element_size() * held.get(p, 1.0)) for p in model.parameters()
    }
    unit_sizes: list[int] = []
    root = 0
    seen: set[int] = set()
    for plan in sharding_plans([model], first.device, class_names):
        seen |= {id(p) for p in plan.replicated}
        for module in (*plan.units, plan.root):
            new = {id(p) for p in module.parameters()} - seen
            seen |= new
            size = sum(nbytes[key] for key in new)
            if module is plan.root:
                root += size
            else:
                unit_sizes.append(size)
    sharded = root + sum(unit_sizes)
    return UnitSizes(
        sharded=sharded,
        root=root,
        largest=max(unit_sizes, default=0),
        smallest=min(unit_sizes, default=0),
        replicated=sum(nbytes.values()) - sharded,
    )
