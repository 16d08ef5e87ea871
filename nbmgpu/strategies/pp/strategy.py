"""The strategy ``pp``: layers are divided over ranks that hold the same samples.

Each rank owns some of a model's layers, with their gradients and optimizer states.  Modules outside
of the sequence of layers, such as embeddings and the head, are split over the same ranks as under
``tp`` (compare Yeung et al. 2024, 2411.05288, for embeddings and heads).
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
from nbmgpu.strategies.base import Backward, RankContext
from nbmgpu.strategies.caching_configs import caching_configs
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.sharding.tensor_shard import OwnerLayout
from nbmgpu.strategies.tp import TensorParallel
from nbmgpu.strategies.tp.tp_param import TPParamState

from .block import OwnedParameter, PipelineBlock
from .block_sequence import is_called
from .deferred import with_values
from .pipeline import Pipeline
from .rebalancing import Rebalancing
from .stacks import Stack, find_stacks, no_stack
from .transport import Transport

PP = "pp"
"""Name of the mesh dimension whose ranks have different layers of one model."""


class PipelineParallel(TensorParallel):
    """Parameters, gradients, optimizer states and computation, divided by layers."""

    profile: ClassVar[Profile] = profiles.PP

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._pipeline: Pipeline | None = None
        self._blocks: list[PipelineBlock] = []
        self._caching: list[Any] = []
        self._rebalancing: Rebalancing | None = None

    @property
    def shard_group(self) -> ProcessGroup:
        """The ranks that hold one model."""
        return self.mesh.get_group(PP)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of these ranks."""
        if self._pipeline is None:
            transport = Transport(self.shard_group, torch.device(self.device))
            measures = self.options.balance == "time"
            self._pipeline = Pipeline(transport, self.options.microbatches, self.notice, measures)
            if measures:
                dp_group = self.dp_group if self.dp_size > 1 else None
                self._rebalancing = Rebalancing(self._pipeline, dp_group, self.notice)
                self.may_move_parameters = True
        return self._pipeline

    @property
    def _stages(self) -> int:
        """Number of stages of a sequence of layers."""
        return self.shard_group.size() * (2 if self.options.schedule == "interleaved" else 1)

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
        ranks, points = self.shard_group.size(), self.options.split_points
        inside: set[nn.Module] = set()
        by_time = self.options.balance == "time"
        for stack in find_stacks(root, ranks, self._stages, points, by_time):
            inside.update(stack.replaced)
            for index, block in enumerate(stack.blocks):
                self._divide(stack, index, fresh)
                inside.update(block.modules())
        self._disable_caches(root)
        super()._shard_root(root, fresh)
        for module in root.modules():
            if module not in inside and is_called(module):
                self._forwards.add(module, with_values)

    def _divide(self, stack: Stack, index: int, fresh: list[TPParamState]) -> None:
        """Give the parameters of a block to their owner."""
        module, owner = stack.blocks[index], stack.owner(index)
        owned: list[OwnedParameter] = []
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is None:
                    continue
                state = self._states.get(id(parameter))
                if state is None:
                    layout = OwnerLayout(parameter.shape, owner, self.shard_group)
                    state = self._states[id(parameter)] = TPParamState(parameter, layout)
                    fresh.append(state)
                owned.append(OwnedParameter(part, name, state))
        block = PipelineBlock(self.pipeline, stack, index, owned)
        self._blocks.append(block)
        self._forwards.add(module, block.forward)

    def _disable_caches(self, root: nn.Module) -> None:
        """Let models of Hugging Face keep no keys and values: each rank would have its own."""
        for config in caching_configs(root):
            self._caching.append(config)
            config.use_cache = False

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients."""
        self.pipeline.keeps_graph = backward.keeps_graph
        super().begin_backward(backward)

    def end_backward(self, backward: Backward) -> None:
        """Agree on which parameters have a gradient, and average over ``dp``."""
        self.pipeline.keeps_graph = True
        states = [owned.state for block in self._blocks for owned in block.parameters]
        flags = torch.tensor([s.local.numel() > 0 and s.local.grad is not None for s in states])
        found = flags.int()
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.shard_group)
        for state, has_grad in zip(states, found.tolist(), strict=True):
            if not state.local.numel():
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
        for block in self._blocks:
            block.share_state(self.pipeline.transport)
        if self._blocks:
            balanced = self.options.balance == "time" or bool(self.options.split_points)
            text = self.pipeline.idle.describe(balanced)
            if text and self.rank == 0:
                self.notice("idle-stages", text)
        super().finish()

    def close(self) -> None:
        """Remove hooks and patches."""
        for config in self._caching:
            config.use_cache = True
        self._caching.clear()
        self._blocks.clear()
        super().close()
