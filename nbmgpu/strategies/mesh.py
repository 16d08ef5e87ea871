"""The device mesh of a run: its ranks, arranged along named dimensions.

The dimensions ``dp`` and ``fsdp`` are data parallelism: ranks along them hold different samples of
the global batch and average their gradients; along ``fsdp`` they also shard the model.  Ranks that
differ only in other dimensions, such as ``tp``, hold the same samples and draw the same random
numbers.  A mesh of ``{"dp": 2, "tp": 2}`` is::

            tp 0    tp 1
    dp 0   rank 0  rank 1
    dp 1   rank 2  rank 3
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nbmgpu.errors import StrategyError, format_message

from .mesh_sizes import DATA_PARALLEL, DP, data_parallel_sizes


class RankMesh:
    """A rank's position in the device mesh.

    Building torch's ``DeviceMesh`` takes 1.7 ms, a thirtieth of a launch.  So where all dimensions
    are data parallel, it is built when a strategy first accesses it.

    Attributes:
        shape: sizes of the dimensions, outermost first.
        dp_size: number of shards of a batch: the product of the data-parallel dimensions.
        dp_rank: index of this rank's shard.
        dp_group: the ranks with different shards; None for the default group, of all ranks.
    """

    def __init__(self, shape: Mapping[str, int], rank: int, world_size: int, device: str) -> None:
        """Arrange the ranks; collective if there are several dimensions.

        Args:
            shape: sizes of the dimensions, outermost first; without a data-parallel one,
                ``dp`` has size 1.
            rank: rank of this process.
            world_size: number of ranks.
            device: of this rank, ``cpu`` or ``cuda:0``.

        Raises:
            StrategyError: the sizes do not multiply to the number of ranks.
        """
        self.shape = dict(shape) if data_parallel_sizes(shape) else {DP: 1, **shape}
        if math.prod(self.shape.values()) != world_size:
            layout = " x ".join(f"{name}={size}" for name, size in self.shape.items())
            what = (
                f"The strategy's device mesh, {layout}, does not have the run's {world_size} ranks"
            )
            allowed = "The sizes of a mesh multiply to the number of ranks"
            raise StrategyError(format_message(what, allowed, "%%mgpu with another --gpus"))
        self._device_type = device.split(":", maxsplit=1)[0]
        self._device_mesh: DeviceMesh | None = None
        data_parallel = data_parallel_sizes(self.shape)
        self.dp_size = math.prod(data_parallel.values())
        self.dp_rank = rank
        self.dp_group: ProcessGroup | None = None
        if self.dp_size != world_size:
            one, *others = data_parallel
            self.dp_group = self.new_dp_group() if others else self.device_mesh.get_group(one)
            self.dp_rank = dist.get_rank(self.dp_group)

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
        return self.new_group(DATA_PARALLEL)

    def new_group(self, names: Collection[str], timeout: timedelta | None = None) -> ProcessGroup:
        """Return a new group of the ranks that differ in some dimensions only; collective.

        Args:
            names: the dimensions; some may not be in the mesh.
            timeout: how long ranks wait in a collective; None for the default.
        """
        world_size = math.prod(self.shape.values())
        dims = [i for i, name in enumerate(self.shape) if name in names]
        size = math.prod(n for name, n in self.shape.items() if name in names)
        if size == world_size:
            return dist.new_group(timeout=timeout)  # type: ignore[no-any-return]
        ranks = torch.arange(world_size).reshape(*self.shape.values())
        rows = ranks.movedim(dims, list(range(-len(dims), 0))).reshape(-1, size)
        group, _ = dist.new_subgroups_by_enumeration(rows.tolist(), timeout=timeout)
        return group  # type: ignore[no-any-return]
