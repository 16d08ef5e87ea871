"""The memory that is free for each rank, with what this kernel holds already subtracted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from nbmgpu.devices.nvidia import Gpu
from nbmgpu.devices.placement import DEFAULT_CPU_RANKS, place_ranks
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies.mesh_sizes import mesh_ranks
from nbmgpu.system.limits import available_memory

from .interval import parse_bytes

MIN_MEMORY = 2**20
"""Bytes.  A smaller ``memory=`` is taken for a number without its unit."""


@dataclass(frozen=True)
class AvailableMemory:
    """The devices of the ranks, and the memory that is free on them.

    Attributes:
        ranks: number of ranks.
        on_gpu: whether each rank has a GPU.
        free: bytes free for the rank with the least memory; None if unknown.
        description: the devices as text, such as ``2 CPU ranks``.
        host: bytes free on the host, for offloaded states; None if unknown.
        notes: what reduces the free memory.
        nodes: number of machines that the ranks are on.
        kind: the type of the GPUs in torch.
    """

    ranks: int
    on_gpu: bool
    free: int | None
    description: str
    host: int | None = None
    notes: tuple[str, ...] = ()
    nodes: int = 1
    kind: str = "cuda"

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each machine."""
        return self.ranks // self.nodes


ALIKE = "Nodes are assumed to have {} like those of this machine; --memory says otherwise."

UNKNOWN = "The memory of the nodes' GPUs is not known: tell it, such as --memory 80GB."


def probe_memory(options: RunOptions, machine: Machine | None = None) -> AvailableMemory:
    """Return the free memory of the devices on which ``options`` place the ranks.

    Memory of a GPU that is in use is subtracted.  This includes the memory of this kernel, which
    stays allocated while the ranks train.  CPU ranks share the memory of the machine.

    Raises:
        OptionError: the machine has too few devices.
    """
    machine = machine or probe()
    placement = place_ranks(options, machine)
    ranks = placement.world_size
    host = available_memory()
    if placement.devices[0] == "cpu":
        return AvailableMemory(ranks, False, host // ranks, format_count(ranks, "CPU rank"), host)
    indices = [int(d) for name in placement.devices for d in name.split(":")[1].split(",")]
    sizes = [_free(machine, index) for index in indices]
    shares = [indices.count(index) for index in indices]  # ranks on the same GPU
    known = [size // share for size, share in zip(sizes, shares, strict=True) if size is not None]
    least = min(known) if len(known) == len(sizes) else None
    name = _gpu(machine, indices[0]).name
    count = len(set(indices))
    description = f"{format_count(count, 'GPU')} ({name})"
    if count < len(indices):
        description = f"{len(indices)} ranks on {description}"
    notes = tuple(_kernel_memory_notes(indices))
    return AvailableMemory(len(indices), True, least, description, host, notes, kind=machine.kind)


def memory_of_nodes(
    options: RunOptions, memory: float | str | None, machine: Machine | None = None
) -> AvailableMemory:
    """Return the free memory of the ranks on the nodes of a cluster, which are not asked.

    Args:
        options: of the run.
        memory: free memory of each GPU; None for that of this machine's GPUs, if there are any.
        machine: this machine; by default it is probed.

    Raises:
        OptionError: the number of ranks is not known, or ``memory`` is implausible.
    """
    machine = machine or probe()
    nodes = options.nodes or 1
    ranks = _ranks_per_node(options, nodes, machine)
    kind = "CPU rank" if options.cpu else "GPU"
    where = f"{format_count(nodes, 'node')} with {format_count(ranks, kind)} each"
    if options.cpu:
        free = available_memory() // ranks
        return AvailableMemory(
            nodes * ranks, False, free, where, notes=(ALIKE.format("memory"),), nodes=nodes
        )
    if memory is not None:
        told = assume_memory(ranks, memory)
        where = f"{where}, {format_bytes(told.free or 0)} per GPU"
        return AvailableMemory(nodes * ranks, True, told.free, where, nodes=nodes)
    sizes = [_free(machine, gpu.index) for gpu in machine.gpus] if machine.cuda else []
    known = [size for size in sizes if size is not None]
    note = ALIKE.format("GPUs") if known else UNKNOWN
    least = min(known, default=None)
    return AvailableMemory(nodes * ranks, True, least, where, notes=(note,), nodes=nodes)


def _ranks_per_node(options: RunOptions, nodes: int, machine: Machine) -> int:
    if isinstance(options.gpus, int):
        return options.gpus
    if isinstance(options.gpus, tuple):
        return len(options.gpus)
    if (ranks := mesh_ranks(options)) and ranks % nodes == 0:
        return ranks // nodes
    if options.cpu:
        return DEFAULT_CPU_RANKS
    if machine.cuda:
        return len(machine.gpus)
    what = "How many GPUs a node has is not known here"
    raise OptionError(format_message(what, "--gpus is their number on each node", "--gpus 8"))


def assume_memory(gpus: int, memory: float | str) -> AvailableMemory:
    """Return the memory of a hypothetical machine of ``gpus`` GPUs with ``memory`` free on each.

    Raises:
        OptionError: ``memory`` is not a plausible amount of memory.
    """
    free = parse_bytes(memory)
    if free < MIN_MEMORY:
        what = f"memory={memory!r} is {format_bytes(free)}, less than any GPU has"
        raise OptionError(format_message(what, instead=f"memory='{memory} GB'"))
    description = f"{format_count(gpus, 'GPU')} with {format_bytes(free)} each"
    return AvailableMemory(gpus, True, free, description)


def _gpu(machine: Machine, index: int) -> Gpu:
    """Return the GPU with that index; there are gaps where some are lost."""
    return next(gpu for gpu in machine.gpus if gpu.index == index)


def _free(machine: Machine, index: int) -> int | None:
    if (gpu := _gpu(machine, index)).memory_total:
        return gpu.memory_free
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.mem_get_info(index)[0])
    return None


def _kernel_memory_notes(indices: list[int]) -> list[str]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    reserved = max(torch.cuda.memory_reserved(index) for index in indices)
    if not reserved:
        return []
    how = "to free it for the ranks, del its tensors and call torch.cuda.empty_cache()"
    return [f"This kernel holds {format_bytes(reserved)} of a GPU; {how}."]
