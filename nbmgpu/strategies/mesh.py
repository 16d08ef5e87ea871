"""The device mesh of a run: its ranks, arranged along named dimensions.

The dimension ``dp`` is data parallelism: ranks along it hold different samples of the global batch
and average their gradients.  Ranks that differ only in other dimensions, such as ``tp``, hold the
same samples and draw the same random numbers.  A mesh of ``{"dp": 2, "tp": 2}`` is::

            tp 0    tp 1
    dp 0   rank 0  rank 1
    dp 1   rank 2  rank 3
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nbmgpu.errors import StrategyError, format_message

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

DP = "dp"
"""Name of the data-parallel dimension, which every mesh has."""


def make_mesh(shape: Mapping[str, int], device: str) -> DeviceMesh:
    """Build the mesh of all ranks; collective if it has several dimensions.

    A mesh with one dimension uses the default process group: it takes 0.2 ms, and no new group.

    Args:
        shape: sizes of the dimensions, outermost first; without ``dp``, this has size 1.
        device: of this rank, ``cpu`` or ``cuda:0``.

    Raises:
        StrategyError: the sizes do not multiply to the number of ranks.
    """
    sizes = dict(shape) if DP in shape else {DP: 1, **shape}
    ranks = dist.get_world_size()
    if math.prod(sizes.values()) != ranks:
        layout = " x ".join(f"{name}={size}" for name, size in sizes.items())
        what = f"The strategy's device mesh, {layout}, does not have the {ranks} ranks of this run"
        allowed = "The sizes of a mesh multiply to the number of ranks"
        raise StrategyError(format_message(what, allowed, "%%mgpu with another number of ranks"))
    kind = device.split(":", maxsplit=1)[0]
    return init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def dp_size_of(mesh: DeviceMesh) -> int:
    """Return the number of ranks along ``dp``."""
    return mesh.size((mesh.mesh_dim_names or ()).index(DP))


def dp_group_of(mesh: DeviceMesh) -> ProcessGroup | None:
    """Return the process group of this rank's ``dp`` dimension; None if it is all ranks."""
    return None if dp_size_of(mesh) == mesh.size() else mesh.get_group(DP)


def new_dp_group(mesh: DeviceMesh) -> ProcessGroup:
    """Return another process group of the same ranks as ``dp_group_of``; collective on all ranks.

    Collectives of two groups may run in a different order on each rank.
    """
    size = dp_size_of(mesh)
    if size == mesh.size():
        return dist.new_group()  # type: ignore[no-any-return]
    dimension = (mesh.mesh_dim_names or ()).index(DP)
    rows = mesh.mesh.movedim(dimension, -1).reshape(-1, size).tolist()
    group, _ = dist.new_subgroups_by_enumeration(rows)
    return group  # type: ignore[no-any-return]
