"""The strategy ``tp``: layers are split over ranks that hold the same samples.

Each rank of a tensor-parallel group computes a part of each layer's features.  Parameters,
gradients and optimizer states are split likewise.  Along ``dp``, gradients are averaged as under
``ddp``.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from torch.distributed import ProcessGroup

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.profiles import Profile
from nbmgpu.strategies.reducer import ReducerOptions
from nbmgpu.strategies.replication import RunningStatistics
from nbmgpu.strategies.sharding.full_tensor_view import ShardedParameter
from nbmgpu.strategies.sharding.sharded_strategy import ReplicatedUnit, ShardedStrategy
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout
from nbmgpu.strategies.unit_reducers import UnitReducers

from .parallel_modules import ParallelModule
from .plan import ModulePlan, parallel_plan
from .tp_param import TPParamState

TP = "tp"
"""Name of the mesh dimension whose ranks hold the parts of one model."""


class TensorParallel(ShardedStrategy):
    """Parameters, gradients, optimizer states and computation, split by features."""

    profile: ClassVar[Profile] = profiles.TP
    weighs_losses: ClassVar[bool] = True

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._states: dict[int, TPParamState] = {}
        self._forwards = ForwardPatch()
        self._reducers = UnitReducers(ReducerOptions(group=self.dp_group))
        self._statistics: list[RunningStatistics] = []

    @property
    def shard_group(self) -> ProcessGroup:
        """The ranks that hold the parts of one model."""
        return self.mesh.get_group(TP)

    @property
    def param_states(self) -> list[TPParamState]:
        """The states of all split parameters."""
        return list(self._states.values())

    def shard_modules(self, modules: list[nn.Module]) -> None:
        """Split the modules in ``modules`` that can be split."""
        fresh: list[TPParamState] = []
        for root in modules:
            for plan in parallel_plan(root, self.shard_group.size()):
                states = self._states_of(plan, fresh)
                if states is not None:
                    module = ParallelModule(plan, states, self.shard_group)
                    self._forwards.add(plan.module, module.forward)
        self.freed_storage.free(fresh)

    def _states_of(
        self, plan: ModulePlan, fresh: list[TPParamState]
    ) -> dict[str, TPParamState] | None:
        """Split a module's parameters; None if one of them is split in another way already."""
        dims = plan.split_parameters()
        parameters = {name: plan.module.get_parameter(name) for name in dims}
        layouts = {
            name: ShardLayout(parameters[name].shape, dim, self.shard_group, plan.blocks)
            for name, dim in dims.items()
        }
        known = {name: self._states.get(id(p)) for name, p in parameters.items()}
        if any(s is not None and s.shard.layout != layouts[n] for n, s in known.items()):
            return None
        states = {}
        for name, parameter in parameters.items():
            state = known[name]
            if state is None:
                state = TPParamState(parameter, layouts[name])
                self._states[id(parameter)] = state
                fresh.append(state)
            states[name] = state
        return states

    def record_units(self) -> None:
        """Record running statistics, and create reducers."""
        self._statistics = [RunningStatistics(unit, self.dp_group) for unit in self._units]
        self._create_reducers()

    def _create_reducers(self) -> None:
        """Create reducers of this rank's parts, and of replicated parameters."""
        units = []
        for unit, replicated in zip(self._units, self.replicated_units(), strict=True):
            split = [p for p in unit.parameters() if isinstance(p, ShardedParameter)]
            local = [self._states[id(p)].local for p in split]
            units.append(ReplicatedUnit([*local, *replicated.parameters()]))
        self._reducers.create(units if self.dp_size > 1 else [])

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients, also of parameters that the cell has unfrozen meanwhile."""
        if self._reducers.changed():
            self._create_reducers()
        self._reducers.begin(backward)

    def end_backward(self, backward: Backward) -> None:
        """Average gradients and running statistics over ``dp``."""
        self._reducers.end()
        if self.dp_size > 1:
            for statistics in self._statistics:
                statistics.average(backward.weight)

    def close(self) -> None:
        """Remove hooks and patches."""
        self._reducers.close()
        self._forwards.remove()
        self._states.clear()
