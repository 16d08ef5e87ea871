"""The plan of a run, without starting any rank (``--dry-run``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.formatting import format_bytes
from nbmgpu.report.text_format import rank_lines
from nbmgpu.serialization.device_memory import freeable
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import describe_positions, format_mesh, mesh_sizes

if TYPE_CHECKING:
    from nbmgpu.options.run_options import RunOptions

    from .execution import Execution


def plan_text(execution: Execution) -> str:
    """Return what a prepared execution would do, as text."""
    placement, cell, bundle = execution.placement, execution.cell, execution.bundle
    width = max((len(name) for name in bundle.sizes), default=0)
    sent = [f"  {name:<{width}}  {format_bytes(size):>10}" for name, size in bundle.sizes.items()]
    options = execution.options
    names = [n for n in cell.writes if options.pull is None or n in options.pull]
    stars = [f"all of {module}" for module in cell.star_imports]
    lines = [
        f"%%mgpu {options.line()}",
        f"ranks        {placement.world_size} on {', '.join(placement.devices)}",
        *([placement.notice] if placement.notice else []),
        *_mesh_lines(options, placement.world_size),
        f"batch        {execution.batch_line or 'no DataLoader among what the cell reads'}",
        f"sent         {format_bytes(bundle.nbytes)} in all"
        + ("; shared data counts once" if sent else ""),
        *sent,
        *_freed_lines(execution),
        f"written back {', '.join([*names, *stars]) or 'nothing is assigned'}",
        "             and every object above that the cell changes",
        "Nothing was started.",
    ]
    return "\n".join(lines)


def _freed_lines(execution: Execution) -> list[str]:
    """Return a line on the memory of GPUs that the notebook frees while the ranks run, if any."""
    if not (execution.options.waits_here and execution.placement.on_accelerators):
        return []
    freed = [block for block in execution.bundle.table.blocks if freeable(block) is not None]
    total = format_bytes(sum(block.nbytes for block in freed))
    return [f"freed        {total} of the notebook's GPU memory, until the end"] if freed else []


def _mesh_lines(options: RunOptions, world_size: int) -> list[str]:
    """Return lines on the device mesh, if it has several dimensions: where ranks are in it."""
    sizes = mesh_sizes(profile_of(options.strategy), world_size, options)
    if len(sizes) == 1:
        return []
    several = sum(size > 1 for size in sizes.values()) > 1
    shown = rank_lines(describe_positions(sizes)) if several else []
    return [f"mesh         {format_mesh(sizes)}", *(f"             {line}" for line in shown)]
