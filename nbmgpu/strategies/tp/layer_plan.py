"""Which layers of a model are split, and along which dimension: without ranks, also for advice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn

from nbmgpu.strategies.sharding.chunks import leaves_none_empty

from .named_plan import NamedPlan
from .plan import ModulePlan, parallel_plan
from .split_block import SplitBlock, named_blocks, split_blocks


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """What is split in one outermost module.

    Attributes:
        modules: the layers.
        blocks: blocks of layers whose activations stay split.
        dims: the dimension along which each of their parameters is split, except those that were
            split earlier.
    """

    modules: tuple[ModulePlan, ...]
    blocks: tuple[SplitBlock, ...]
    dims: Mapping[nn.Parameter, int]


def plan_layers(
    root: nn.Module,
    ranks: int,
    known: Callable[[nn.Parameter], int | None] = lambda _: None,
    except_for: Collection[nn.Parameter] = (),
    allow_empty: bool = True,
    named: NamedPlan | None = None,
) -> LayerPlan:
    """Plan how the layers in ``root`` are split.

    A layer is left as it is if one of its parameters is split in another way already, by an earlier
    layer or an earlier root.

    Args:
        root: the outermost module, also on the meta device.
        ranks: number of parts.
        known: returns the dimension along which a parameter is split already; -1 if it is not
            split by features.
        except_for: parameters that cannot be split.
        allow_empty: whether ranks may hold empty parts.
        named: the user's plan; None to find one.

    Raises:
        StrategyError: the user's plan names layers that are not there, or cannot be split.
    """
    if named is None:
        blocks = list(split_blocks(root, ranks))
        by_inputs = {layer for block in blocks for layer in block.last}
        chosen = None
    else:
        by_inputs, by_outputs = named.layers_of(root, ranks)
        blocks = list(named_blocks(root, by_outputs, by_inputs, ranks))
        chosen = by_inputs | by_outputs
    modules: list[ModulePlan] = []
    dims: dict[nn.Parameter, int] = {}
    for plan in parallel_plan(root, by_inputs, ranks, chosen):
        wanted = {
            plan.module.get_parameter(name): dim for name, dim in plan.split_parameters().items()
        }
        before = {p: dims.get(p) if known(p) is None else known(p) for p in wanted}
        if all(
            parameter not in except_for
            and (allow_empty or leaves_none_empty(parameter.shape[dim], ranks))
            and before[parameter] in (None, dim)
            for parameter, dim in wanted.items()
        ):
            modules.append(plan)
            dims |= {p: dim for p, dim in wanted.items() if known(p) is None}
    split = {plan.module for plan in modules}
    whole = tuple(block for block in blocks if split.issuperset(block.layers))
    return LayerPlan(tuple(modules), whole, dims)
