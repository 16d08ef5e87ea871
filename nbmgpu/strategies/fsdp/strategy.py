"""The strategies ``fsdp``, ``hsdp`` and ``zero2``, which use FSDP2's ``fully_shard``.

Parameters, gradients and optimizer states are sharded by rows, over the ranks along ``fsdp``; ranks
along ``dp`` hold replicas of a shard.  The cell keeps its own objects,
which look like full tensors (``sharding/``).  Parameters that FSDP2 cannot shard are
replicated, and their gradients are averaged as under ``ddp``.
"""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext
from nbmgpu.strategies.collectives import all_reduce_flags
from nbmgpu.strategies.mesh_sizes import DP, strategy_sizes
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.reducer import ReducerOptions
from nbmgpu.strategies.replication import RunningStatistics
from nbmgpu.strategies.sharding.call_order import BACKWARD, END_OF_CELL
from nbmgpu.strategies.sharding.sharded_strategy import ShardedStrategy
from nbmgpu.strategies.strategy_options import StrategyOptions
from nbmgpu.strategies.unit_reducers import UnitReducers

from .fsdp_param import FSDPParamState
from .fsdp_param_group import CellFSDPParamGroup
from .wrap_policy import sharding_plans
from .wrapper import FSDPWrapper


class FullyShardedDataParallel(ShardedStrategy):
    """Sharded parameters, gradients and optimizer states: ZeRO stage 3."""

    profile: ClassVar[Profile] = profiles.FSDP
    weighs_losses: ClassVar[bool] = True
    reshards: ClassVar[bool] = True

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._wrapper: FSDPWrapper | None = None
        # Buckets are reduced at the end: FSDP2 issues its own collectives in between.
        self._reducers = UnitReducers(ReducerOptions(group=self.dp_group), overlap=False)
        self._statistics: list[RunningStatistics] = []

    @property
    def wrapper(self) -> FSDPWrapper:
        """The sharded modules."""
        if self._wrapper is None:
            self._wrapper = FSDPWrapper(
                self.fsdp_mesh, self.options, self.reshards, self.profile.name, self.freed_storage
            )
        return self._wrapper

    @classmethod
    def mesh_shape(cls, world_size: int, options: StrategyOptions) -> dict[str, int]:
        """Return the sizes without ``dp`` where it is 1: ``fsdp`` alone is the default group."""
        sizes = super().mesh_shape(world_size, options)
        return {name: size for name, size in sizes.items() if name != DP or size > 1}

    @property
    def fsdp_mesh(self) -> DeviceMesh:
        """The ranks that shard the model: one dimension, or replicas of shards."""
        if self.options.exact != "always":
            return self.mesh
        sizes = strategy_sizes(self.profile, self.world_size, self.options)
        sizes = {name: size for name, size in sizes.items() if name != DP or size > 1}
        kind = torch.device(self.device).type
        return init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    @property
    def shard_group(self) -> ProcessGroup | None:
        """The ranks that hold the rows of one tensor; None for all ranks."""
        return self.wrapper.shard_group

    def shard_modules(self, modules: list[nn.Module]) -> None:
        """Shard modules by FSDP2.

        Raises:
            StrategyError: ``--fsdp-units`` names a class that no model contains.
        """
        for plan in sharding_plans(modules, torch.device(self.device), self.options.fsdp_units):
            self.wrapper.shard(plan)

    def record_units(self) -> None:
        """Record running statistics and replicated parameters."""
        # Ranks with the same samples have the same statistics and gradients.
        averaged = self._units if self.dp_size > 1 else []
        self._statistics = [RunningStatistics(unit, self.dp_group) for unit in averaged]
        self._reducers.create(self.replicated_units() if averaged else [])

    @property
    def _groups(self) -> list[CellFSDPParamGroup]:
        return self._wrapper.groups if self._wrapper is not None else []

    @property
    def param_states(self) -> list[FSDPParamState]:
        """The states of all sharded parameters."""
        return self._wrapper.param_states if self._wrapper is not None else []

    def check_backward(self) -> None:
        """Check that no rank is in a forward pass, whose all-gathers would wait for this rank."""
        if self.param_states:
            self.wrapper.call_order.check(BACKWARD)

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients, also of parameters that the cell has unfrozen meanwhile."""
        for group in self._groups:
            group.begin_backward()
        if self._reducers.changed():
            self._reducers.create(self.replicated_units())
        self._reducers.begin(backward)

    def end_backward(self, backward: Backward) -> None:
        """Reduce gradients that FSDP2 has not, and agree on which parameters have one."""
        have_unreduced = [each for group in self._groups for each in group.collect_unreduced()]
        self._reducers.end()
        if self.param_states:
            self.wrapper.check_reductions()
            self._agree_on_gradients(have_unreduced)
        for statistics in self._statistics:
            statistics.average(backward.weight)

    def _agree_on_gradients(self, have_unreduced: list[bool]) -> None:
        """Reduce what any rank has, and remove what no rank has; collective.

        Args:
            have_unreduced: which parameters have a gradient on this rank that is not reduced yet.
        """
        states = self.param_states
        have_grad = [each for group in self._groups for each in group.has_grad]
        flags = all_reduce_flags(have_grad + have_unreduced)
        remaining = iter(flags)
        for group in self._groups:
            group_flags = [*islice(remaining, len(group.param_states))]
            for index in group.had_no_grad:
                if not group_flags[index]:
                    group.param_states[index].set_grad(None)  # FSDP2 has reduced zeros
        for state, has_unreduced in zip(states, remaining, strict=True):
            if has_unreduced:
                state.reduce_unreduced()
        for group in self._groups:
            group.has_unreduced = False

    def finish(self) -> None:
        """Gather all objects of the cell; collective."""
        if self.param_states:
            self.wrapper.call_order.check(END_OF_CELL, wait=True)
        super().finish()

    def close(self) -> None:
        """Remove all hooks."""
        self._reducers.close()
        if self._wrapper is not None:
            self._wrapper.close()
            self._wrapper.param_states = []
            self._wrapper.groups = []


class HybridSharding(FullyShardedDataParallel):
    """Shards inside groups of ranks, and replicas between them."""

    profile: ClassVar[Profile] = profiles.HSDP


class ZeroStage2(FullyShardedDataParallel):
    """Parameters stay unsharded from forward to backward: ZeRO stage 2."""

    profile: ClassVar[Profile] = profiles.ZERO2
    reshards: ClassVar[bool] = False
