"""What room there is for each rank, now, and with this kernel still holding what it holds."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from nbmgpu.devices.placement import place_ranks
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_count, format_bytes
from nbmgpu.options.run_options import RunOptions
from nbmgpu.system.limits import available_memory

from .interval import read_bytes


@dataclass(frozen=True)
class Room:
    """Where ranks would be, and what each may hold.

    Attributes:
        ranks: how many.
        on_gpu: whether each has a GPU.
        free: bytes free for the rank that has the least; None where nobody knows.
        words: where, as one says it: ``2 CPU ranks``.
        host: bytes free on the host, for what is kept there; None where nobody knows.
        notes: what lessens the room.
    """

    ranks: int
    on_gpu: bool
    free: int | None
    words: str
    host: int | None = None
    notes: tuple[str, ...] = ()


def look(options: RunOptions, machine: Machine | None = None) -> Room:
    """Look at what is free where ``options`` would place the ranks.

    On a GPU, memory that is in use is taken off, that of this kernel as well: it stays
    there while ranks train.  CPU ranks share the memory of the machine.

    Raises:
        OptionError: the machine has not so many devices.
    """
    machine = machine or probe()
    placement = place_ranks(options, machine)
    ranks = placement.world_size
    host = available_memory()
    if placement.devices[0] == "cpu":
        return Room(ranks, False, host // ranks, format_count(ranks, "CPU rank"), host)
    indices = [int(d) for name in placement.devices for d in name.split(":")[1].split(",")]
    sizes = [_free(machine, index) for index in indices]
    known = [size for size in sizes if size is not None]
    least = min(known) if len(known) == len(sizes) else None
    name = machine.gpus[indices[0]].name
    words = f"{format_count(len(indices), 'GPU')} ({name})"
    return Room(len(indices), True, least, words, host, tuple(_held_by_kernel(indices)))


LEAST = 2**20
"""Bytes: less than that is a number that lacks its unit."""


def imagined(gpus: int, memory: float | str) -> Room:
    """Return a room of ``gpus`` GPUs with ``memory`` free on each, that need not be here."""
    free = read_bytes(memory)
    if free < LEAST:
        what = f"memory={memory!r} is {format_bytes(free)}, less than any GPU has"
        raise OptionError(format_message(what, instead=f"memory='{memory} GB'"))
    return Room(gpus, True, free, f"{format_count(gpus, 'GPU')} with {format_bytes(free)} each")


def _free(machine: Machine, index: int) -> int | None:
    if machine.gpus[index].memory_total:
        return machine.gpus[index].memory_free
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.mem_get_info(index)[0])
    return None


def _held_by_kernel(indices: list[int]) -> list[str]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    held = max(torch.cuda.memory_reserved(index) for index in indices)
    if not held:
        return []
    how = "del of its tensors and torch.cuda.empty_cache() give it to the ranks"
    return [f"This kernel holds {format_bytes(held)} of a GPU; {how}."]
