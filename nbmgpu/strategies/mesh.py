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

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nbmgpu.errors import StrategyError, format_message

DP = "dp"
"""Name of the data-parallel dimension, which every mesh has."""


class RankMesh:
    """A rank's position in the device mesh.

    Building torch's ``DeviceMesh`` takes 1.7 ms, a thirtieth of a launch.  So where ``dp`` is the
    only dimension, it is built when a strategy first accesses it; such a mesh uses the default
    process group.
    """

    def __init__(self, shape: Mapping[str, int], rank: int, world_size: int, device: str) -> None:
        """Arrange the ranks; collective if there are several dimensions.

        Args:
            shape: sizes of the dimensions, outermost first; without ``dp``, this has size 1.
            rank: rank of this process.
            world_size: number of ranks.
            device: of this rank, ``cpu`` or ``cuda:0``.

        Raises:
            StrategyError: the sizes do not multiply to the number of ranks.
        """
        self.shape = dict(shape) if DP in shape else {DP: 1, **shape}
        if math.prod(self.shape.values()) != world_size:
            layout = " x ".join(f"{name}={size}" for name, size in self.shape.items())
            what = (
                f"The strategy's device mesh, {layout}, does not have the run's {world_size} ranks"
            )
            allowed = "The sizes of a mesh multiply to the number of ranks"
            raise StrategyError(format_message(what, allowed, "%%mgpu with another --gpus"))
        self._device_type = device.split(":", maxsplit=1)[0]
        self._device_mesh: DeviceMesh | None = None
        self.dp_size = self.shape[DP]
        self.dp_rank = rank
        self.dp_group: ProcessGroup | None = None
        if self.dp_size != world_size:
            self.dp_rank = self.device_mesh.get_local_rank(DP)
            self.dp_group = self.device_mesh.get_group(DP)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of all ranks, with named dimensions."""
        if self._device_mesh is None:
            sizes, names = tuple(self.shape.values()), tuple(self.shape)
            self._device_mesh = init_device_mesh(self._device_type, sizes, mesh_dim_names=names)
        return self._device_mesh

    def new_dp_group(self) -> ProcessGroup:
        """Return another process group of the ranks along ``dp``; collective on all ranks.

        Collectives of two groups may run in a different order on each rank.
        """
        if self.dp_group is None:
            return dist.new_group()  # type: ignore[no-any-return]
        dimension = list(self.shape).index(DP)
        rows = self.device_mesh.mesh.movedim(dimension, -1).reshape(-1, self.dp_size).tolist()
        group, _ = dist.new_subgroups_by_enumeration(rows)
        return group  # type: ignore[no-any-return]
