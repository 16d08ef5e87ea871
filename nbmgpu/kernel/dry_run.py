"""What a cell would do on ranks, said without starting any (``--dry-run``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.formatting import in_words

if TYPE_CHECKING:
    from .execution import Execution


def plan_text(execution: Execution) -> str:
    """Say what a prepared execution would do."""
    placement, cell, shipment = execution.placement, execution.cell, execution.shipment
    width = max((len(name) for name in shipment.sizes), default=0)
    shipped = [f"  {name:<{width}}  {in_words(size):>10}" for name, size in shipment.sizes.items()]
    options = execution.options
    back = [n for n in cell.writes if options.pull is None or n in options.pull]
    stars = [f"all of {module}" for module in cell.star_imports]
    lines = [
        f"{options.command}",
        f"ranks        {placement.world_size} on {', '.join(placement.devices)}",
        *([placement.notice] if placement.notice else []),
        f"batch        {execution.batch_line or 'no DataLoader among what the cell reads'}",
        f"shipped      {in_words(shipment.nbytes)} in all"
        + ("; what is shared counts once" if shipped else ""),
        *shipped,
        f"comes back   {', '.join([*back, *stars]) or 'nothing is assigned'}",
        "             and the state of every object above that the cell changes",
        "Nothing was started.",
    ]
    return "\n".join(lines)
