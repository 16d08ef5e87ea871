"""What one rank holds of a model that is divided over ranks, by the strategies' own plans.

A ``ModelParts`` says which fraction a rank has of each parameter, and of the tensors that are
allocated while a module runs.  A fake step counts by it; see ``memory_tracker``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from nbmgpu.strategies.pp.stacks import Stack, find_stacks
from nbmgpu.strategies.repeated_blocks import blocks
from nbmgpu.strategies.sharding.chunks import chunk_size
from nbmgpu.strategies.strategy_options import StrategyOptions
from nbmgpu.strategies.tp.layer_plan import LayerPlan, plan_layers
from nbmgpu.strategies.tp.named_plan import NamedPlan
from nbmgpu.strategies.tp.split_block import SplitBlock

Attention = Literal["as computed", "some heads", "own queries"]
"""How ranks share attention: ``sp`` gives each some heads, ``cp`` its own queries and all keys."""


@dataclass(frozen=True, eq=False)
class ModelParts:
    """The parts of a model on the rank that holds most.

    Attributes:
        ranks: number of ranks that share the model; 1 if none do.
        held: fraction of each parameter that the rank has; 1 where there is none.
        regions: fraction of a tensor that is allocated while a module runs; the innermost one of
            these modules counts.
        sent: modules whose output is communicated.
        attention: how attention is shared.
    """

    ranks: int = 1
    held: Mapping[nn.Parameter, float] = field(default_factory=dict)
    regions: Mapping[nn.Module, float] = field(default_factory=dict)
    sent: frozenset[nn.Module] = frozenset()
    attention: Attention = "as computed"

    def held_fraction(self, model: nn.Module) -> float:
        """Return the fraction of all bytes of parameters that the rank holds."""
        sizes = {p: p.numel() * p.element_size() for p in model.parameters()}
        held = sum(size * self.held.get(p, 1.0) for p, size in sizes.items())
        return held / max(1, sum(sizes.values()))

    def largest_region(self) -> int:
        """Return the bytes of the parameters of the largest region; 0 if there is none."""
        sizes = (
            sum(p.numel() * p.element_size() for p in region.parameters())
            for region in self.regions
        )
        return max(sizes, default=0)

    def in_copy(self, model: nn.Module, copied: nn.Module) -> ModelParts:
        """Return the parts of ``copied``, a deep copy of ``model``."""
        modules = dict(zip(model.modules(), copied.modules(), strict=True))
        parameters = dict(zip(model.parameters(), copied.parameters(), strict=True))
        return replace(
            self,
            held={parameters[p]: fraction for p, fraction in self.held.items()},
            regions={modules[m]: fraction for m, fraction in self.regions.items()},
            sent=frozenset(modules[m] for m in self.sent),
        )


WHOLE = ModelParts()
"""The whole model on each rank."""


def parts_of(
    strategy: str, model: nn.Module, mesh: Mapping[str, int], options: StrategyOptions
) -> ModelParts:
    """Return what a rank holds of ``model``.

    Args:
        strategy: name of the strategy.
        model: the model, also on the meta device or with fake tensors.
        mesh: sizes of the strategy's mesh.
        options: options of the strategy.

    Raises:
        StrategyError: ``--split-points`` does not fit the model.
    """
    if strategy in ("tp", "fsdp+tp"):
        named = NamedPlan.of(options.tp_plan)
        return tensor_parts(model, mesh["tp"], named, allow_empty=strategy == "tp")
    if strategy in ("pp", "mp"):
        return pipeline_parts(model, mesh.get("pp", math.prod(mesh.values())), options)
    if strategy in ("sp", "cp"):
        return sequence_parts(model, mesh[strategy], strategy == "sp")
    return WHOLE


def tensor_parts(
    model: nn.Module, ranks: int, named: NamedPlan | None = None, allow_empty: bool = True
) -> ModelParts:
    """Return the parts under ``tp``: of split layers, and of activations inside of blocks."""
    if ranks == 1:
        return WHOLE
    plan = plan_layers(model, ranks, allow_empty=allow_empty, named=named)
    inner = {layer for block in filter(_stays_split, plan.blocks) for layer in block.first}
    sent = frozenset(each.module for each in plan.modules if each.module not in inner)
    return ModelParts(ranks, _held(plan, ranks), _block_regions(plan, ranks), sent)


def _held(plan: LayerPlan, ranks: int) -> dict[nn.Parameter, float]:
    """Return the fractions on the first rank, which has the largest parts."""
    return {
        p: chunk_size(p.shape[dim], ranks) / max(1, p.shape[dim]) for p, dim in plan.dims.items()
    }


def _block_regions(plan: LayerPlan, ranks: int) -> dict[nn.Module, float]:
    """Return where activations are split: inside of blocks, but for the outputs of their ends."""
    regions: dict[nn.Module, float] = {}
    for block in filter(_stays_split, plan.blocks):
        # A sequence may have other layers, too; what is between two of them is known.
        is_sequence = type(block.module) is nn.Sequential
        inside = (*block.first, *block.between) if is_sequence else (block.module,)
        regions |= dict.fromkeys(inside, 1 / ranks) | dict.fromkeys(block.last, 1.0)
    return regions


def _stays_split(block: SplitBlock) -> bool:
    """Whether activations stay split; a trial on ranks will tell, and an MLP will pass it.

    Layers that return what the block takes may be queries and keys, which it will not.
    """
    if block.is_certain:
        return True
    wide = block.last[0].get_parameter("weight").shape[1]
    return all(
        layer.get_parameter("weight").shape[0] == wide != layer.get_parameter("weight").shape[1]
        for layer in block.first
    )


def pipeline_parts(model: nn.Module, ranks: int, options: StrategyOptions) -> ModelParts:
    """Return the parts under ``pp`` and ``mp``: layers by stages, other modules as under ``tp``.

    Under ``mp`` other modules are on one device; they are assumed to be spread.
    """
    if ranks == 1:
        return WHOLE
    stages = ranks * (2 if options.schedule == "interleaved" else 1)
    by_time = options.balance == "time"
    stacks = find_stacks(model, ranks, stages, options.split_points, by_time)
    held: dict[nn.Parameter, float] = {}
    regions: dict[nn.Module, float] = {}
    for stack in stacks:
        share = _largest_share(stack)
        held |= {p: share for block in stack.blocks for p in block.parameters()}
        regions |= dict.fromkeys(stack.blocks, _most_blocks(stack) / len(stack.blocks))
    # Parameters that a block owns are not split by features; the layers outside of blocks are.
    outside = plan_layers(model, ranks, known=lambda p: -1 if p in held else None)
    sent = frozenset(each.module for each in outside.modules)
    if not stacks:
        return WHOLE
    return ModelParts(ranks, held | _held(outside, ranks), regions, sent | regions.keys())


def _largest_share(stack: Stack) -> float:
    """Return the largest fraction of a stack's parameters on one rank."""
    sizes = [0] * stack.ranks
    for index, block in enumerate(stack.blocks):
        sizes[stack.owner(index)] += sum(p.numel() for p in block.parameters())
    return max(sizes) / max(1, sum(sizes))


def _most_blocks(stack: Stack) -> int:
    owners = [stack.owner(index) for index in range(len(stack.blocks))]
    return max(map(owners.count, range(stack.ranks)))


def sequence_parts(model: nn.Module, ranks: int, some_heads: bool) -> ModelParts:
    """Return the parts under ``sp`` or ``cp``: of activations inside of layers."""
    if ranks == 1 or any(_attends_eagerly(module) for module in model.modules()):
        return WHOLE
    found = blocks(model) or [m for m in model.children() if any(True for _ in m.children())]
    attention: Attention = "some heads" if some_heads else "own queries"
    regions = dict.fromkeys(found, 1 / ranks)
    return ModelParts(ranks, {}, regions, frozenset(found), attention)


def _attends_eagerly(module: nn.Module) -> bool:
    """Whether a model of Hugging Face does not call ``scaled_dot_product_attention``."""
    config: Any = getattr(module, "config", None)
    return getattr(config, "_attn_implementation", None) == "eager"
