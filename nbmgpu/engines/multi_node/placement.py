"""Places ranks on several nodes, each of which gets as many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmgpu.devices.placement import DEFAULT_CPU_RANKS, Placement
from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_count
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import mesh_ranks

if TYPE_CHECKING:
    from nbmgpu.options.run_options import RunOptions


def place_on_nodes(
    options: RunOptions, gpus_per_node: Callable[[], int], threads: int | None
) -> Placement:
    """Return the devices of the ranks, those of the first node first.

    Args:
        options: ``gpus`` is the number of each node; None for all of them, or for two CPU ranks
            where there are none.
        gpus_per_node: returns how many GPUs each node has, at least.
        threads: cores of each rank; None for 1.

    Raises:
        OptionError: the options cannot be had on nodes.
    """
    nodes = options.nodes or 1
    if profile_of(options.strategy).in_one_process:
        what = f"--strategy {options.strategy} runs in one process on this machine"
        instead = dataclasses.replace(options, strategy="fsdp").command
        raise OptionError(format_message(what, f"--engine {options.engine} starts ranks", instead))
    ranks = _ranks_per_node(options, nodes)
    gpus = 0 if options.cpu else gpus_per_node()
    if gpus and ranks is not None and ranks > gpus:
        what = f"--gpus {ranks} is more than each node has"
        instead = dataclasses.replace(options, gpus=gpus).command
        raise OptionError(format_message(what, f"Nodes have {format_count(gpus, 'GPU')}", instead))
    on_node = ranks or gpus or DEFAULT_CPU_RANKS
    devices = [f"cuda:{index}" if gpus else "cpu" for index in range(on_node)]
    cores = threads or 1
    notice = (
        f"{format_count(nodes, 'node')} of {options.engine} with "
        f"{format_count(on_node, 'rank' if gpus else 'CPU rank')} each, on "
        f"{format_count(cores, 'core')} per rank."
    )
    return Placement((*devices,) * nodes, cores, notice, nodes)


def _ranks_per_node(options: RunOptions, nodes: int) -> int | None:
    """Return how many ranks each node is to have; None for as many as it has GPUs."""
    if options.gpus is None and options.mesh:
        world_size = mesh_ranks(options) or nodes
        if world_size % nodes:
            what = f"--mesh {','.join(options.mesh)} has {world_size} ranks"
            allowed = f"Each of {nodes} nodes gets as many ranks"
            instead = dataclasses.replace(options, nodes=1).command
            raise OptionError(format_message(what, allowed, instead))
        return world_size // nodes
    if options.gpus is None or options.gpus == "all":
        return None
    if isinstance(options.gpus, int):
        return options.gpus
    what = f"--gpus {','.join(map(str, options.gpus))} lists GPUs"
    allowed = f"{options.engine} chooses them"
    instead = dataclasses.replace(options, gpus=len(options.gpus)).command
    raise OptionError(format_message(what, allowed, instead))
