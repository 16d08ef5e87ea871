"""The plan of a run, without starting any rank (``--dry-run``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.formatting import format_bytes

if TYPE_CHECKING:
    from .execution import Execution


def plan_text(execution: Execution) -> str:
    """Return what a prepared execution would do, as text."""
    placement, cell, bundle = execution.placement, execution.cell, execution.bundle
    width = max((len(name) for name in bundle.sizes), default=0)
    shipped = [
        f"  {name:<{width}}  {format_bytes(size):>10}" for name, size in bundle.sizes.items()
    ]
    options = execution.options
    back = [n for n in cell.writes if options.pull is None or n in options.pull]
    stars = [f"all of {module}" for module in cell.star_imports]
    lines = [
        f"{options.command}",
        f"ranks        {placement.world_size} on {', '.join(placement.devices)}",
        *([placement.notice] if placement.notice else []),
        f"batch        {execution.batch_line or 'no DataLoader among what the cell reads'}",
        f"shipped      {format_bytes(bundle.nbytes)} in all"
        + ("; what is shared counts once" if shipped else ""),
        *shipped,
        f"comes back   {', '.join([*back, *stars]) or 'nothing is assigned'}",
        "             and the state of every object above that the cell changes",
        "Nothing was started.",
    ]
    return "\n".join(lines)
