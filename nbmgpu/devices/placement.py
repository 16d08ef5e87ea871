"""Places the ranks of a run on the devices of a machine.

``place_ranks`` depends on a ``Machine`` alone and has no side effects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_count
from nbmgpu.options.run_options import RunOptions
from nbmgpu.options.values import GpuRequest
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import mesh_ranks

from .probe import Machine
from .requirements import refused_device

DEFAULT_CPU_RANKS = 2
"""CPU ranks if no number is given: the fewest that make a distributed run."""

ALL_CPU_RANKS = 4
"""CPU ranks for ``--gpus all``, if there are as many cores."""

RANKS_PER_CORE = 4
"""Limit of CPU ranks per core; more would only wait for one another."""


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a run are placed.

    Attributes:
        devices: one per rank: ``cpu``, ``cuda:1``, or ``cuda:0,1`` for a rank with several GPUs.
        threads: CPU threads of each rank.
        notice: a line for the user; may be empty.
        nodes: number of machines; ``devices`` has those of the first one first.
    """

    devices: tuple[str, ...]
    threads: int
    notice: str = ""
    nodes: int = 1

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def on_accelerators(self) -> bool:
        """Whether ranks use GPUs."""
        return any(device != "cpu" for device in self.devices)


def place_ranks(options: RunOptions, machine: Machine) -> Placement:
    """Return the devices of the ranks.

    With GPUs: all by default, the first N, or those listed; ranks share a GPU that is listed more
    than once.  Without a usable GPU, or with
    ``--cpu``: N CPU ranks (2 by default), as many as a list has, or for ``all`` one per core up
    to 4.  Without a number, a mesh has one.  A strategy that works in a single process has one
    rank with all of these devices.

    Raises:
        OptionError: the machine has too few GPUs or cores.
    """
    if options.gpus is None and options.mesh:
        options = dataclasses.replace(options, gpus=mesh_ranks(options))
    one_process = profile_of(options.strategy).in_one_process
    if machine.cuda and not options.cpu:
        devices = _choose_gpus(options, machine)
        notice = _shared_gpu_notice(devices)
        if why := refused_device(profile_of(options.strategy), machine.kind):
            what = f"--strategy {options.strategy} {why}"
            nearest = dataclasses.replace(options, strategy="ddp")
            raise OptionError(format_message(what, instead=nearest.command))
        if notice and machine.kind != "cuda":
            what = f"Ranks cannot share a device of {machine.kind}: gloo, by which they would"
            _refuse_shared(options, devices, f"{what} communicate, knows none of its tensors")
        if one_process:
            if notice:
                what = f"--strategy {options.strategy} runs in one process"
                _refuse_shared(options, devices, f"{what}, which cannot list a GPU twice")
            indices = ",".join(device.removeprefix("cuda:") for device in devices)
            devices = (f"cuda:{indices}",)
        if machine.lost:
            notice = _sentences(f"{' and '.join(machine.lost)}: not used", machine.remedy, notice)
        return Placement(devices, max(1, machine.cores // len(devices)), notice)
    ranks = 1 if one_process else _count_cpu_ranks(options, machine)
    threads = max(1, machine.cores // ranks)
    notice = (
        f"{'As requested' if options.cpu else machine.why_not or 'No GPU here'}: "
        f"{format_count(ranks, 'CPU rank')} with gloo, {format_count(threads, 'thread')} each"
    )
    if ranks > machine.cores:
        notice += f", sharing {format_count(machine.cores, 'core')}"
    remedy = "" if options.cpu else machine.remedy
    return Placement(("cpu",) * ranks, threads, _sentences(notice, remedy))


def _sentences(*parts: str) -> str:
    """Join those that are not empty, each of which ends with a full stop afterwards."""
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)


def _choose_gpus(options: RunOptions, machine: Machine) -> tuple[str, ...]:
    """Return the requested GPUs as devices."""
    available = [gpu.index for gpu in machine.gpus]
    has = f"there {'is' if len(available) == 1 else 'are'} {len(available)}"
    wanted: Sequence[int]
    match options.gpus:
        case None | "all":
            wanted, ranks = available, len(available)
        case int(count):
            wanted, ranks = available[:count], count
            what = f"{format_count(count, 'GPU')} requested, but {has}"
            nearest: GpuRequest = len(available)
        case listed:
            wanted, ranks = listed, len(listed)
            missing = ", ".join(str(index) for index in listed if index not in available)
            what = f"There is no GPU {missing}: {has}, counted from 0"
            nearest = tuple(index for index in listed if index in available) or "all"
    if len(wanted) == ranks and all(index in available for index in wanted):
        return tuple(f"{machine.kind}:{index}" for index in wanted)
    if besides := [*machine.lost, *filter(None, [machine.hidden])]:
        what += f", and {' and '.join(besides)}"
    on_cpu = f"With --cpu, {format_count(ranks, 'CPU rank')} would run instead"
    allowed = on_cpu if ranks <= RANKS_PER_CORE * machine.cores else ""
    can_share = machine.kind == "cuda" and not profile_of(options.strategy).in_one_process
    if len(available) == 1 and ranks == 2 and can_share:
        allowed += "; with --gpus 0,0, two ranks share the GPU: slower, with the same numbers"
    raise OptionError(
        format_message(what, allowed, dataclasses.replace(options, gpus=nearest).command)
    )


def _shared_gpu_notice(devices: Sequence[str]) -> str:
    """Return what to tell the user if ranks share GPUs; else an empty text."""
    shared = sorted({device for device in devices if devices.count(device) > 1})
    if not shared:
        return ""
    return (
        f"Several ranks share {' and '.join(shared)}. They communicate by gloo, because NCCL needs "
        "one GPU per rank. The numbers are those of as many GPUs; the speed is not."
    )


def _refuse_shared(options: RunOptions, devices: Sequence[str], what: str) -> NoReturn:
    """Raise for ranks, or one process, that cannot have the same device twice."""
    indices = tuple(dict.fromkeys(int(device.partition(":")[2]) for device in devices))
    nearest = dataclasses.replace(options, gpus=indices)
    raise OptionError(format_message(what, instead=nearest.command))


def _count_cpu_ranks(options: RunOptions, machine: Machine) -> int:
    """Return the requested number of CPU ranks."""
    match options.gpus:
        case None:
            return DEFAULT_CPU_RANKS
        case "all":
            return min(machine.cores, ALL_CPU_RANKS)
        case int(count):
            ranks = count
        case listed:
            ranks = len(listed)
    most = RANKS_PER_CORE * machine.cores
    if ranks > most:
        what = f"{ranks} CPU ranks are too many for {format_count(machine.cores, 'core')}"
        nearest = dataclasses.replace(options, gpus=most)
        raise OptionError(
            format_message(what, f"At most {RANKS_PER_CORE} per core run", nearest.command)
        )
    return ranks
