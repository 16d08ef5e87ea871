"""The strategy ``tp``: layers are split over ranks that hold the same samples.

Each rank of a tensor-parallel group computes a part of each layer's features.  Parameters,
gradients and optimizer states are split likewise.  Along ``dp``, gradients are averaged as under
``ddp``.

With ``--sequence-parallel``, the layers of a model run on slices of the sequence between split
layers (Korthikanti et al. 2022, 2205.05198).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext, Unit
from nbmgpu.strategies.collectives import all_reduce
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.reducer import ReducerOptions
from nbmgpu.strategies.replication import RunningStatistics
from nbmgpu.strategies.sequence.model_layers import ModelLayers
from nbmgpu.strategies.sharding.full_tensor_view import ShardedParameter
from nbmgpu.strategies.sharding.sharded_strategy import ReplicatedUnit, ShardedStrategy
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout
from nbmgpu.strategies.unit_reducers import UnitReducers

from .layers_on_slices import NO_SEQUENCE, layers_on_slices
from .named_plan import NamedPlan
from .root_plan import plan_root
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
        self._layers: ModelLayers | None = None
        # Until the next step, there may be graphs from before a parameter was split.
        self._expects_early_grads = False

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
            self._shard_root(root, fresh)
        self.freed_storage.free(fresh)
        self._expects_early_grads |= bool(fresh)

    def _shard_root(self, root: nn.Module, fresh: list[TPParamState]) -> None:
        """Split the modules in ``root``, and append the states of new parameters to ``fresh``."""
        named = NamedPlan.of(self.options.tp_plan)
        plan = plan_root(root, self.shard_group, self._split_dim, named=named)
        for parameter, layout in plan.layouts.items():
            state = self._states[id(parameter)] = TPParamState(parameter, layout)
            fresh.append(state)
        plan.wrap(lambda parameter: self._states[id(parameter)], self._forwards, self.copy_tag)
        if self.options.sequence_parallel and self.shard_group.size() > 1:
            if self._layers is None:
                # Along ``dp``, ranks weight losses by what their graphs say of them.
                whole = self.dp_size > 1
                settings = layers_on_slices(self.shard_group, self.notice)
                self._layers = ModelLayers(settings, self._forwards, returns_whole=whole)
            self._layers.wrap(root)

    def _split_dim(self, parameter: nn.Parameter) -> int | None:
        """Return the dimension along which a parameter is split already; -1 if one rank has it."""
        state = self._states.get(id(parameter))
        if state is None:
            return None
        layout = state.shard.layout
        return layout.dim if isinstance(layout, ShardLayout) else -1

    def record_units(self) -> None:
        """Record running statistics, and create reducers."""
        self._statistics = [RunningStatistics(unit, self.dp_group) for unit in self._units]
        self._create_reducers()

    def _create_reducers(self) -> None:
        """Create reducers of this rank's parts, and of replicated parameters."""
        units = [ReplicatedUnit(self._local_tensors(unit)) for unit in self._units]
        self._reducers.create(units if self.dp_size > 1 else [])

    def _local_tensors(self, unit: Unit) -> list[nn.Parameter]:
        """Return this rank's parts of the parameters of ``unit``, and those that are replicated."""
        parameters = unit.parameters()
        split = [p for p in parameters if isinstance(p, ShardedParameter)]
        whole = [p for p in parameters if not isinstance(p, ShardedParameter)]
        return [*(self._states[id(p)].local for p in split), *whole]

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients, also of parameters that the cell has unfrozen meanwhile."""
        if self._reducers.changed():
            self._create_reducers()
        self._reducers.begin(backward)

    def end_backward(self, backward: Backward) -> None:
        """Average gradients and running statistics over ``dp``."""
        self._reducers.end()
        if self._expects_early_grads:
            self._add_early_grads()
        if self.dp_size > 1:
            for statistics in self._statistics:
                statistics.average(backward.weight)

    def _add_early_grads(self) -> None:
        """Average gradients from forward passes before parameters were split, and add the parts."""
        states = self.param_states
        grads = [state.take_early_grad() for state in states]
        present = torch.tensor([grad is not None for grad in grads], dtype=torch.int32)
        if self.dp_size > 1:
            dist.all_reduce(present, dist.ReduceOp.MAX, group=self.dp_group)
        for state, early, is_present in zip(states, grads, present.tolist(), strict=True):
            if not is_present:
                continue
            zeros = torch.zeros(state.shape, dtype=state.dtype, device=state.device)
            grad = zeros if early is None else early.contiguous()
            if self.dp_size > 1:
                all_reduce(grad, self.dp_group).wait()
            state.accumulate_grad(grad / self.dp_size)

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step, after which no graph is from before a parameter was split."""
        result = super().step(optimizer, plain)
        self._expects_early_grads = False
        return result

    def finish(self) -> None:
        """Gather the outputs that the cell still holds, and all objects of the cell; collective."""
        if self._layers is not None:
            self._layers.gather_outputs()
            if self._layers.has_split_none():
                self.notice("no-sequence", NO_SEQUENCE)
        super().finish()

    def close(self) -> None:
        """Remove hooks and patches."""
        if self._layers is not None:
            self._layers.remove()
        self._reducers.close()
        self._forwards.remove()
        self._states.clear()
