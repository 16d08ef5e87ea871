"""The strategy ``pp``: layers are divided over ranks that hold the same samples.

Each rank owns some of a model's layers, with their gradients and optimizer states.  Modules outside
of the sequence of layers, such as embeddings and the head, are split over the same ranks as under
``tp`` (compare Yeung et al. 2024, 2411.05288, for embeddings and heads).

Meshes with more dimensions have several ranks in each stage: those along ``tp`` split its layers,
and those along ``fsdp`` shard them, as in torchtitan (Liang et al. 2024, 2410.06511).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext
from nbmgpu.strategies.caching_configs import caching_configs
from nbmgpu.strategies.mesh_sizes import DATA_PARALLEL, DP, FSDP
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.sharding.call_order import (
    BACKWARD,
    END_OF_CELL,
    TIMEOUT,
    CallOrderCheck,
)
from nbmgpu.strategies.sharding.param_state import ParamState
from nbmgpu.strategies.sharding.sharded_strategy import ReplicatedUnit
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout
from nbmgpu.strategies.tp import TensorParallel
from nbmgpu.strategies.tp.named_plan import NamedPlan
from nbmgpu.strategies.tp.root_plan import RootPlan, plan_root
from nbmgpu.strategies.tp.strategy import TP
from nbmgpu.strategies.tp.tp_param import TPParamState

from .block import OwnedParameter, PipelineBlock
from .block_sequence import is_called
from .deferred import DeferredTensor, with_values
from .pipeline import Pipeline
from .rebalancing import Rebalancing
from .stacks import Stack, find_stacks, no_stack
from .stage_param import StageGroups, StageParamState
from .transport import Transport

PP = "pp"
"""Name of the mesh dimension whose ranks have different layers of one model."""


class PipelineParallel(TensorParallel):
    """Parameters, gradients, optimizer states and computation, divided by layers."""

    profile: ClassVar[Profile] = profiles.PP

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        sizes = context.mesh.shape
        groups = {name: self.mesh.get_group(name) for name, size in sizes.items() if size > 1}
        self._groups = StageGroups(
            self.mesh.get_group(PP), groups.get(DP), groups.get(FSDP), groups.get(TP)
        )
        # Outside of the stack, all ranks with the same samples share the modules.
        self._model_group = self.new_group((PP, TP)) if self._groups.tp else self._groups.pp
        self._call_order: CallOrderCheck | None = None
        if self._groups.fsdp:
            peers = self.new_group(DATA_PARALLEL, TIMEOUT)
            self._call_order = CallOrderCheck(self.profile.name, peers, "%%mgpu --strategy pp")
        self._pipeline: Pipeline | None = None
        self._blocks: list[PipelineBlock] = []
        self._caching: list[Any] = []
        self._rebalancing: Rebalancing | None = None

    @property
    def shard_group(self) -> ProcessGroup:
        """The ranks that hold one model, and have the same samples."""
        return self._model_group

    @property
    def norm_groups(self) -> Sequence[ProcessGroup | None]:
        """The ranks that hold one model, and those that hold its shards."""
        return [self._model_group, *filter(None, [self._groups.fsdp])]

    def counts_in_norm(self, param_state: ParamState) -> bool:
        """Whether no other rank along ``tp`` or ``fsdp`` holds the same part."""
        splits, shards = True, False  # of modules outside of the stack
        if isinstance(param_state, StageParamState):
            splits, shards = param_state.split is not None, param_state.rows is not None
        return (splits or _is_first(self._groups.tp)) and (shards or _is_first(self._groups.fsdp))

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of these ranks."""
        if self._pipeline is None:
            transport = Transport(self._groups.pp, torch.device(self.device))
            measures = self.options.balance == "time"
            self._pipeline = Pipeline(
                transport,
                self.options.microbatches,
                self.notice,
                measures,
                self._call_order,
                self.copy_tag,
            )
            if measures:
                dp_group = self.dp_group if self.dp_size > 1 else None
                self._rebalancing = Rebalancing(self._pipeline, dp_group, self.notice)
                self.may_move_parameters = True
        return self._pipeline

    @property
    def _stages(self) -> int:
        """Number of stages of a sequence of layers."""
        return self._groups.pp.size() * (2 if self.options.schedule == "interleaved" else 1)

    def shard_modules(self, modules: list[nn.Module]) -> None:
        """Divide the layers of ``modules``.

        Raises:
            StrategyError: there are no layers to divide, or no such split points.
        """
        super().shard_modules(modules)
        if modules and not self._blocks and self._stages > 1:
            raise no_stack(modules, self._stages)

    def _shard_root(self, root: nn.Module, fresh: list[TPParamState]) -> None:
        """Divide the layers in ``root``, and split the modules outside of them."""
        ranks, points = self._groups.pp.size(), self.options.split_points
        by_time = self.options.balance == "time"
        stacks = find_stacks(root, ranks, self._stages, points, by_time)
        inside = {m for stack in stacks for block in stack.blocks for m in block.modules()}
        splitting = self._split_inside(root, inside)
        owned = [self._divide(stack, splitting.layouts, fresh) for stack in stacks]
        splitting.wrap(lambda parameter: self._states[id(parameter)], self._forwards, self.copy_tag)
        for stack, parameters in zip(stacks, owned, strict=True):
            self._add_blocks(stack, parameters)
            inside.update(stack.replaced)
        self._disable_caches(root)
        super()._shard_root(root, fresh)
        for module in root.modules():
            if module not in inside and is_called(module):
                self._forwards.add(module, with_values, traced=False)

    def _split_inside(self, root: nn.Module, inside: set[nn.Module]) -> RootPlan:
        """Plan how the ranks of a stage split the modules ``inside`` of its layers."""
        if self._groups.tp is None:
            return RootPlan((), (), {}, self._groups.pp)
        own = {p for module in inside for p in module.parameters(recurse=False)}
        plan = plan_root(
            root, self._groups.tp, except_for={*root.parameters()} - own, allow_empty=False,
            named=NamedPlan.of(self.options.tp_plan),
        )  # fmt: skip
        # Layers of a sequence may be on different ranks: activations between them are not split.
        blocks = tuple(block for block in plan.blocks if block.module in inside)
        return replace(plan, blocks=blocks)

    def _divide(
        self, stack: Stack, layouts: Mapping[nn.Parameter, ShardLayout], fresh: list[TPParamState]
    ) -> list[list[OwnedParameter]]:
        """Give the parameters of each block to the ranks of its stage."""
        return [
            [
                OwnedParameter(part, name, self._state_of(parameter, owner, layouts, fresh))
                for part in block.modules()
                for name, parameter in part._parameters.items()
                if parameter is not None
            ]
            for block, owner in zip(
                stack.blocks, map(stack.owner, range(len(stack.blocks))), strict=True
            )
        ]

    def _state_of(
        self,
        parameter: nn.Parameter,
        owner: int,
        layouts: Mapping[nn.Parameter, ShardLayout],
        fresh: list[TPParamState],
    ) -> StageParamState:
        state: Any = self._states.get(id(parameter))
        if state is None:
            state = StageParamState(parameter, owner, self._groups, layouts.get(parameter))
            self._states[id(parameter)] = state
            fresh.append(state)
        return state  # type: ignore[no-any-return]

    def _add_blocks(self, stack: Stack, parameters: list[list[OwnedParameter]]) -> None:
        """Let the calls of a stack's blocks run on the ranks of their stages."""
        for index, owned in enumerate(parameters):
            number = len(self._blocks)
            block = PipelineBlock(self.pipeline, stack, index, owned, number)
            self._blocks.append(block)
            self._forwards.add(block.module, block.forward, traced=False)

    def _disable_caches(self, root: nn.Module) -> None:
        """Let models of Hugging Face keep no keys and values: each rank would have its own."""
        for config in caching_configs(root):
            self._caching.append(config)
            config.use_cache = False

    def _create_reducers(self) -> None:
        """Create reducers of this rank's parts; ranks along ``fsdp`` have reduced rows already."""
        tensors = [self._local_tensors(unit) for unit in self._units]
        rows = {state.local for state in self._block_states() if state.rows is not None}
        others = [ReplicatedUnit([t for t in each if t not in rows]) for each in tensors]
        self._reducers.create(others if self.dp_size > 1 else [])

    def _block_states(self) -> list[StageParamState]:
        return [state for block in self._blocks for state in block.states]

    def check_backward(self) -> None:
        """Check that no rank is in a forward pass, whose all-gathers would wait for this rank."""
        if self._call_order is not None and self._blocks:
            self._call_order.check(BACKWARD)

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients."""
        self.pipeline.keeps_graph = backward.keeps_graph
        super().begin_backward(backward)

    def end_backward(self, backward: Backward) -> None:
        """Agree on which parameters have a gradient, and average over ``dp``."""
        self.pipeline.keeps_graph = True
        states = self._block_states()
        flags = torch.tensor([s.is_owned and s.local.grad is not None for s in states])
        found = flags.int()
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._groups.pp)
        for state, has_grad in zip(states, found.tolist(), strict=True):
            if not state.is_owned:
                state.local.grad = torch.zeros_like(state.local) if has_grad else None
        super().end_backward(backward)

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step, after layers have moved to other ranks under ``--balance time``."""
        if self._rebalancing is not None and self.may_move_parameters:
            if self._rebalancing.run(self._blocks, self._optimizers()):
                self._create_reducers()
            self.may_move_parameters = not self._rebalancing.is_done
        return super().step(optimizer, plain)

    def explain(self, error: BaseException) -> str:
        """Return what autograd's errors mean where a tensor has not passed through a layer."""
        text = str(error)
        if "expected shape compatible with [0]" in text:
            return (
                "Under pp, a torch.autograd.Function, or a full backward hook, gets the output of "
                "a layer before the next one is called. Try: such functions inside of a layer or "
                "after the last one, or %%mgpu --strategy tp"
            )
        if "backward through the graph a second time" in text:
            return (
                "Under pp, the graph of each layer is on one rank: a loss on a tensor that a layer "
                "keeps as an attribute or passes to a hook is not possible. Try: return it from "
                "the layer, or %%mgpu --strategy tp"
            )
        return super().explain(error)

    def finish(self) -> None:
        """Gather all objects of the cell; collective."""
        if self._call_order is not None and self._blocks:
            self._call_order.check(END_OF_CELL)
        for block in self._blocks:
            block.share_state(self.pipeline.transport)
        if self._blocks:
            by_time = (
                self.options.balance == "time" or "balance" not in self.profile.options.supported
            )
            text = self.pipeline.idle.describe(by_time or bool(self.options.split_points))
            if text and self.rank == 0:
                self.notice("idle-stages", text)
        super().finish()

    def release(self) -> None:
        """Remove all hooks; after a failure, no layer runs any more, also for ``%mgpu debug``."""
        if not self._finished:
            DeferredTensor.can_run = False
        super().release()

    def close(self) -> None:
        """Remove hooks and patches."""
        for config in self._caching:
            config.use_cache = True
        self._caching.clear()
        self._blocks.clear()
        super().close()


def _is_first(group: ProcessGroup | None) -> bool:
    """Whether this rank is the first of ``group``; also without a group."""
    return group is None or group.rank() == 0


class TensorPipelineParallel(PipelineParallel):
    """Stages whose ranks split each layer."""

    profile: ClassVar[Profile] = profiles.TP_PP


class ShardedPipelineParallel(PipelineParallel):
    """Stages whose ranks have different samples, and shard each layer."""

    profile: ClassVar[Profile] = profiles.FSDP_PP


class ShardedTensorPipelineParallel(PipelineParallel):
    """Stages whose ranks split each layer, and shard the parts."""

    profile: ClassVar[Profile] = profiles.FSDP_TP_PP
