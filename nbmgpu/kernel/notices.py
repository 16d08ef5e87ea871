"""Texts of the notices of the kernel about a launch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbmgpu.formatting import format_bytes, format_limit
from nbmgpu.serialization.memory_blocks import CPU
from nbmgpu.system import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.serialization.bundle import Bundle

PATCHED_LIBRARIES = (
    "{}: the notebook has put a function of its own there, and ranks have the library's. Put the "
    "assignment into the cell."
)
DETACHED = (
    "{}: computed in the notebook with gradients; the graph stays there, so a backward pass in "
    "the cell ends at these tensors."
)
TRANSFER = "{size} of the notebook's data go to the nodes{names}."
LARGE_TRANSFER = (
    " Every run sends them again. Faster: save them once where the nodes see the file, and open it "
    "as a map (np.load(path, mmap_mode='r'), datasets.load_from_disk(path)), of which only the "
    "path is sent, or load them in the cell."
)
MAPPED_TRANSFER = (
    " {size} of them are mapped from {path}, but a tensor of a map is sent whole, and so is an "
    "array with mmap_mode='c'. Faster: leave x = np.load(path, mmap_mode='r') an array, of which "
    "only the path is sent, and call torch.from_numpy(x) in the cell."
)
LARGE = 256 * 2**20
"""Bytes from which it takes seconds on a usual network of 1 to 10 Gbit/s."""

NAMED, SHOWN = 2**20, 3
"""Bytes from which a variable is named, and how many are."""

OUTLIVES_KERNEL = (
    "The run outlives this kernel, for {limit} at most (--timeout). `%mgpu attach {run}` "
    "brings its results into a later one; `%mgpu stop {run}` ends it."
)
RESTARTED = (
    "On shards of a batch, the cell {reason}. After {seconds:.1f} s it has started again with "
    "whole batches, which give the numbers of one device; a step may take longer. For speed, with "
    "other numbers: %%mgpu --exact never"
)
KILLED = (
    "Rank {rank} of run {run} was ended by {exit}, so the cell has started again, as "
    "--max-restarts allows. Restarts left: {left}."
)
NODE_LOST = (
    "Run {run} has lost a node, so the cell has started again, as --max-restarts allows: {cause}. "
    "Restarts left: {left}."
)
LAUNCHER_LOST = (
    "The launcher of run {run} has ended without a report, so the cell has started again, as "
    "--max-restarts allows. Restarts left: {left}."
)
HUNG = (
    "Run {run} made no progress, so the cell has started again, as --on-hang restart asks: "
    "{cause}. Restarts left: {left}."
)
RESTARTED_TO_DIVIDE = (
    "No loader divides what the cell trains on, so every rank would do all the work. After "
    "{seconds:.1f} s it has started again with whole batches, of which ranks divide the calls of "
    "its modules. Usually faster: put the step into a loop over the parts of its batch, `for x, y "
    "in nbmgpu.share(x, y):`, with the cell's names. For none of that: %%mgpu --exact never"
)

HELD_UNTIL_NOW = (
    "The ranks that were held have ended with this cell; %%mgpu --hold starts new ones."
)
HELD = (
    "{} %mgpu release writes models and optimizers back and ends the ranks; %mgpu release "
    "--discard only ends them."
)


def patched_libraries(overrides: Iterable[str], source: str) -> str:
    """Return what the notebook has patched in libraries, unless the cell does that itself."""
    names = ((name, name.rpartition(".")[2]) for name in overrides)
    patched = [name for name, last in names if not re.search(rf"\.{last}\s*=", source)]
    return PATCHED_LIBRARIES.format(", ".join(f"`{name}`" for name in patched)) if patched else ""


def transfer(bundle: Bundle) -> str:
    """Return how much is sent to the nodes of a cluster, by variable where it is much."""
    sizes = sorted(bundle.sizes.items(), key=lambda each: -each[1])[:SHOWN]
    named = [f"`{name}` {format_bytes(size)}" for name, size in sizes if size >= NAMED]
    names = f", most in {', '.join(named)}" if named else ""
    text = TRANSFER.format(size=format_bytes(bundle.nbytes), names=names)
    return text + ((_of_map(bundle) or LARGE_TRANSFER) if bundle.nbytes >= LARGE else "")


def _of_map(bundle: Bundle) -> str:
    """Return what to do where a file is sent that the notebook has mapped; else nothing."""
    largest = max(bundle.table.blocks, key=lambda block: block.nbytes, default=None)
    if largest is None or largest.device != CPU or largest.nbytes < bundle.nbytes / 2:
        return ""
    try:
        path = procfs.mapped_file(procfs.maps(), largest.low)
    except OSError:  # not Linux
        return ""
    return MAPPED_TRANSFER.format(size=format_bytes(largest.nbytes), path=path) if path else ""


def outlives_kernel(options: RunOptions, run: str) -> str:
    """Return how to reach the detached run with that id; empty for other runs."""
    if not options.is_detached:
        return ""
    return OUTLIVES_KERNEL.format(limit=format_limit(options.time_limit or 0), run=run)
