"""The layers of one outermost module that are split, and the layouts of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn
from torch.distributed import ProcessGroup

from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout, TensorLayout

from .named_plan import NamedPlan
from .parallel_block import ParallelBlock
from .parallel_modules import ParallelModule, SplitParameter
from .plan import ModulePlan, parallel_plan
from .split_block import SplitBlock, named_blocks, split_blocks


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
        self, state_of: Callable[[nn.Parameter], SplitParameter], forwards: ForwardPatch
    ) -> None:
        """Let the layers compute with parts of their parameters.

        Args:
            state_of: returns the state of a split parameter.
            forwards: the wrappers of forward passes, to which those of layers are added.
        """
        split: dict[nn.Module, ParallelModule] = {}
        for plan in self.modules:
            names = plan.split_parameters()
            states = {name: state_of(plan.module.get_parameter(name)) for name in names}
            split[plan.module] = ParallelModule(plan, states, self.group)
            forwards.add(plan.module, split[plan.module].forward)
        for block in self.blocks:
            layers = tuple(split[layer] for layer in block.layers)
            forwards.add(block.module, ParallelBlock(block, layers).forward)


def plan_root(
    root: nn.Module,
    group: ProcessGroup,
    known: Callable[[nn.Parameter], TensorLayout | None] = lambda _: None,
    except_for: Collection[nn.Parameter] = (),
    allow_empty: bool = True,
    named: NamedPlan | None = None,
) -> RootPlan:
    """Plan how the layers in ``root`` are split.

    A layer is left as it is if one of its parameters is split in another way already, by an earlier
    layer or an earlier root.

    Args:
        root: the outermost module.
        group: the ranks that hold the parts.
        known: returns the layout of a parameter that is split already.
        except_for: parameters that cannot be split.
        allow_empty: whether ranks may hold empty parts.
        named: the user's plan; None to find one.

    Raises:
        StrategyError: the user's plan names layers that are not there, or cannot be split.
    """
    if named is None:
        blocks = list(split_blocks(root, group.size()))
        by_inputs = {layer for block in blocks for layer in block.last}
        chosen = None
    else:
        by_inputs, by_outputs = named.layers_of(root, group.size())
        blocks = list(named_blocks(root, by_outputs, by_inputs, group.size()))
        chosen = by_inputs | by_outputs
    modules: list[ModulePlan] = []
    layouts: dict[nn.Parameter, ShardLayout] = {}
    for plan in parallel_plan(root, by_inputs, group.size(), chosen):
        wanted = {
            parameter: ShardLayout(parameter.shape, dim, group)
            for name, dim in plan.split_parameters().items()
            for parameter in (plan.module.get_parameter(name),)
        }
        before = {parameter: known(parameter) or layouts.get(parameter) for parameter in wanted}
        if all(
            parameter not in except_for
            and (allow_empty or layout.leaves_none_empty)
            and before[parameter] in (None, layout)
            for parameter, layout in wanted.items()
        ):
            modules.append(plan)
            layouts |= {p: layout for p, layout in wanted.items() if known(p) is None}
    split = {plan.module for plan in modules}
    whole = tuple(block for block in blocks if split.issuperset(block.layers))
    return RootPlan(tuple(modules), whole, layouts, group)
