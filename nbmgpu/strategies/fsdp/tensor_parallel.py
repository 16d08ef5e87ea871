"""The strategy ``fsdp+tp``: layers are split over some ranks, and the parts sharded over others.

Ranks along ``tp`` hold the same samples and compute parts of each layer, as under ``tp``.  Each
part is sharded by rows over the ranks along ``fsdp``, which hold other samples, as under ``fsdp``:
the two dimensions of torchtitan (Liang et al. 2024, 2410.06511, section 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import RankContext
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.mesh_sizes import DATA_PARALLEL
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.sharding.param_state import ParamState
from nbmgpu.strategies.sharding.tensor_shard import NestedLayout
from nbmgpu.strategies.tp.named_plan import NamedPlan
from nbmgpu.strategies.tp.root_plan import plan_root
from nbmgpu.strategies.tp.strategy import TP

from .fsdp_param import FSDPParamState
from .strategy import FullyShardedDataParallel
from .wrap_policy import sharding_plans


class FullyShardedTensorParallel(FullyShardedDataParallel):
    """Layers split over ``tp``, whose parts are sharded over ``fsdp``."""

    profile: ClassVar[Profile] = profiles.FSDP_TP

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._forwards = ForwardPatch()

    @property
    def fsdp_mesh(self) -> DeviceMesh:
        """The ranks with different samples: one dimension, or replicas of shards."""
        names = tuple(n for n in self.mesh.mesh_dim_names or () if n in DATA_PARALLEL)
        return self.mesh[names]

    @property
    def tp_group(self) -> ProcessGroup:
        """The ranks that hold the parts of one layer."""
        return self.mesh.get_group(TP)

    @property
    def norm_groups(self) -> Sequence[ProcessGroup | None]:
        """The ranks that hold the shards of a part, and those that hold the parts."""
        return [self.shard_group, self.tp_group]

    def counts_in_norm(self, param_state: ParamState) -> bool:
        """Whether no other rank along ``tp`` holds the same shard."""
        is_split = isinstance(param_state.shard.layout, NestedLayout)
        return is_split or self.tp_group.rank() == 0

    def shard_modules(self, modules: list[nn.Module]) -> None:
        """Split layers over ``tp``, and shard all parameters by FSDP2."""
        device = torch.device(self.device)
        for sharding in sharding_plans(modules, device, self.options.fsdp_units):
            splitting = plan_root(
                sharding.root, self.tp_group, except_for=sharding.replicated, allow_empty=False,
                named=NamedPlan.of(self.options.tp_plan),
            )  # fmt: skip
            states = self.wrapper.shard(sharding, splitting.layouts)
            by_parameter: dict[nn.Parameter, FSDPParamState] = {s.parameter: s for s in states}
            splitting.wrap(by_parameter.__getitem__, self._forwards, self.copy_tag)

    def close(self) -> None:
        """Remove all hooks."""
        super().close()
        self._forwards.remove()
