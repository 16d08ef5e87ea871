"""The layers of one outermost module that are split, and the layouts of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn
from torch.distributed import ProcessGroup

from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.sample_tags import CopyTag
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout

from .layer_plan import plan_layers
from .named_plan import NamedPlan
from .parallel_block import ParallelBlock
from .parallel_modules import ParallelModule, SplitParameter
from .plan import ModulePlan
from .split_block import SplitBlock


@dataclass(frozen=True, eq=False)
class RootPlan:
    """What is split in one outermost module.

    Attributes:
        modules: the layers.
        blocks: blocks of layers whose activations stay split.
        layouts: how each of their parameters is split, except those that were split earlier.
        group: the ranks that hold the parts.
    """

    modules: tuple[ModulePlan, ...]
    blocks: tuple[SplitBlock, ...]
    layouts: Mapping[nn.Parameter, ShardLayout]
    group: ProcessGroup

    def wrap(
        self,
        state_of: Callable[[nn.Parameter], SplitParameter],
        forwards: ForwardPatch,
        copy_tag: CopyTag | None,
    ) -> None:
        """Let the layers compute with parts of their parameters.

        Args:
            state_of: returns the state of a split parameter.
            forwards: the wrappers of forward passes, to which those of layers are added.
            copy_tag: is told that outputs of the layers have the samples of their inputs.
        """
        split: dict[nn.Module, ParallelModule] = {}
        for plan in self.modules:
            names = plan.split_parameters()
            states = {name: state_of(plan.module.get_parameter(name)) for name in names}
            split[plan.module] = ParallelModule(plan, states, self.group, copy_tag)
            forwards.add(plan.module, split[plan.module].forward, traced=False)
        for block in self.blocks:
            layers = tuple(split[layer] for layer in block.layers)
            forwards.add(block.module, ParallelBlock(block, layers).forward, traced=False)


def plan_root(
    root: nn.Module,
    group: ProcessGroup,
    known: Callable[[nn.Parameter], int | None] = lambda _: None,
    except_for: Collection[nn.Parameter] = (),
    allow_empty: bool = True,
    named: NamedPlan | None = None,
) -> RootPlan:
    """Plan how the layers in ``root`` are split over the ranks of ``group``.

    The other arguments are those of ``plan_layers``.

    Raises:
        StrategyError: the user's plan names layers that are not there, or cannot be split.
    """
    on_meta = {parameter for parameter in root.parameters() if parameter.is_meta}
    plan = plan_layers(root, group.size(), known, {*except_for, *on_meta}, allow_empty, named)
    layouts = {p: ShardLayout(p.shape, dim, group) for p, dim in plan.dims.items()}
    return RootPlan(plan.modules, plan.blocks, layouts, group)
