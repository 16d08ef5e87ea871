"""What one rank holds of a model that is divided over ranks, by the strategies' own plans.

A ``ModelParts`` says which fraction a rank has of each parameter, and of the tensors that are
allocated while a module runs.  A fake step counts by it; see ``memory_tracker``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from nbmgpu.strategies.mesh_sizes import FSDP
from nbmgpu.strategies.pp.stacks import Stack, find_stacks
from nbmgpu.strategies.pp.stage_balance import rank_totals
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
        held: fraction of each parameter that the rank computes with; 1 where there is none.
        kept: fraction of each parameter that it has between steps, if it gathers others' rows.
        regions: fraction of a tensor that is allocated while a module runs; the innermost one of
            these modules counts.
        sent: modules whose output is communicated, and the fraction of it that a rank sends where
            layers run on slices.
        attention: how attention is shared.
    """

    ranks: int = 1
    held: Mapping[nn.Parameter, float] = field(default_factory=dict)
    kept: Mapping[nn.Parameter, float] = field(default_factory=dict)
    regions: Mapping[nn.Module, float] = field(default_factory=dict)
    sent: Mapping[nn.Module, float] = field(default_factory=dict)
    attention: Attention = "as computed"

    def held_fraction(self, model: nn.Module) -> float:
        """Return the fraction of all bytes of parameters that the rank computes with."""
        return _fraction(model, self.held)

    def kept_fraction(self, model: nn.Module) -> float:
        """Return the fraction of all bytes of parameters that the rank has between steps."""
        return _fraction(model, {**self.held, **self.kept})

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
            kept={parameters[p]: fraction for p, fraction in self.kept.items()},
            regions={modules[m]: fraction for m, fraction in self.regions.items()},
            sent={modules[m]: fraction for m, fraction in self.sent.items()},
        )


def _fraction(model: nn.Module, held: Mapping[nn.Parameter, float]) -> float:
    sizes = {p: p.numel() * p.element_size() for p in model.parameters()}
    part = sum(size * held.get(p, 1.0) for p, size in sizes.items())
    return part / max(1, sum(sizes.values()))


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
        parts = tensor_parts(model, mesh["tp"], named, allow_empty=strategy == "tp")
        return on_slices(model, parts) if options.sequence_parallel else parts
    if strategy == "mp":
        return pipeline_parts(model, {"pp": math.prod(mesh.values())}, options)
    if strategy in ("pp", "tp+pp", "fsdp+pp", "fsdp+tp+pp"):
        return pipeline_parts(model, mesh, options)
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
    summed = {layer for block in plan.blocks for layer in block.last}
    sent = {m: _sent_of_slice(m, ranks, summed) for m in _sent_modules(plan)}
    return ModelParts(ranks, _held(plan, ranks), {}, _block_regions(plan, ranks), sent)


def _sent_of_slice(module: nn.Module, ranks: int, summed: Collection[nn.Module]) -> float:
    """Return the fraction that a rank sends of an output, where layers run on slices.

    Layers at the end of a block reduce-scatter sums of whole sequences.  Embeddings are before all
    layers.  Others, such as the head, exchange their features for those of a slice.
    """
    return 1.0 if module in summed or isinstance(module, nn.Embedding) else 1 / ranks


def on_slices(model: nn.Module, parts: ModelParts) -> ModelParts:
    """Return the parts under ``tp --sequence-parallel``: layers run on slices between blocks."""
    layers = sequence_parts(model, parts.ranks, some_heads=True)
    regions = {**layers.regions, **parts.regions}
    return replace(parts, regions=regions, attention=layers.attention)


def _sent_modules(plan: LayerPlan) -> set[nn.Module]:
    """Return the split layers whose outputs are gathered or summed."""
    inner = {layer for block in filter(_stays_split, plan.blocks) for layer in block.first}
    return {each.module for each in plan.modules if each.module not in inner}


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


def pipeline_parts(
    model: nn.Module, mesh: Mapping[str, int], options: StrategyOptions
) -> ModelParts:
    """Return the parts under ``pp``, its meshes with several ranks in a stage, and ``mp``.

    Layers are divided by stages; those along ``tp`` split them, and those along ``fsdp`` shard
    them.  Other modules are split as under ``tp``, by the ranks of all stages.  Under ``mp`` they
    are on one device; they are assumed to be spread.
    """
    ranks, split, shards = mesh.get("pp", 1), mesh.get("tp", 1), mesh.get(FSDP, 1)
    if ranks * split * shards == 1:
        return WHOLE
    stages = ranks * (2 if options.schedule == "interleaved" else 1)
    by_time = options.balance == "time"
    stacks = find_stacks(model, ranks, stages, options.split_points, by_time)
    if not stacks:
        return WHOLE
    inside = _split_stages(model, stacks, split, options)
    of_layers, split_regions = _held(inside, split), _block_regions(inside, split)
    held: dict[nn.Parameter, float] = {}
    regions: dict[nn.Module, float] = {}
    for stack in stacks:
        share, activations = _largest_share(stack), _most_blocks(stack) / len(stack.blocks)
        for block in stack.blocks:
            held |= {p: share * of_layers.get(p, 1.0) for p in block.parameters()}
            regions[block] = activations
            own = {m: split_regions[m] for m in block.modules() if m in split_regions}
            regions |= {module: activations * fraction for module, fraction in own.items()}
    kept = {
        p: held[p] * _rows_kept(p, inside.dims.get(p), split, shards)
        for p in held if shards > 1 and p.dim()
    }  # fmt: skip
    # Parameters that a block owns are not split by features; the layers outside of blocks are.
    outside = plan_layers(model, ranks * split, known=lambda p: -1 if p in held else None)
    sent = {each.module for each in outside.modules}
    # Where layers are split, the last one in a block sends an output as large as the block's.
    sent |= _sent_modules(inside) or {block for stack in stacks for block in stack.blocks}
    held |= _held(outside, ranks * split)
    return ModelParts(ranks * split, held, kept, regions, dict.fromkeys(sent, 1.0))


def _split_stages(
    model: nn.Module, stacks: Sequence[Stack], ranks: int, options: StrategyOptions
) -> LayerPlan:
    """Return what ``ranks`` along ``tp`` split inside of stages; see ``PipelineParallel``."""
    if ranks == 1:
        return LayerPlan((), (), {})
    modules = {m for stack in stacks for block in stack.blocks for m in block.modules()}
    own = {p for module in modules for p in module.parameters(recurse=False)}
    named = NamedPlan.of(options.tp_plan)
    others = {*model.parameters()} - own
    plan = plan_layers(model, ranks, except_for=others, allow_empty=False, named=named)
    return replace(plan, blocks=tuple(b for b in plan.blocks if b.module in modules))


def _rows_kept(parameter: nn.Parameter, split: int | None, ranks: int, shards: int) -> float:
    """Return the fraction of its part that the first rank along ``fsdp`` has between steps."""
    rows = chunk_size(parameter.shape[0], ranks) if split == 0 else parameter.shape[0]
    return chunk_size(rows, shards) / max(1, rows)


def _largest_share(stack: Stack) -> float:
    """Return the largest fraction of a stack's parameters on one rank."""
    sizes = [sum(p.numel() for p in block.parameters()) for block in stack.blocks]
    return max(rank_totals(sizes, stack.stages, stack.ranks)) / max(1, sum(sizes))


def _most_blocks(stack: Stack) -> float:
    return max(rank_totals([1] * len(stack.blocks), stack.stages, stack.ranks))


def sequence_parts(model: nn.Module, ranks: int, some_heads: bool) -> ModelParts:
    """Return the parts under ``sp`` or ``cp``: of activations inside of layers."""
    if ranks == 1 or any(_attends_eagerly(module) for module in model.modules()):
        return WHOLE
    found = blocks(model) or [m for m in model.children() if any(True for _ in m.children())]
    attention: Attention = "some heads" if some_heads else "own queries"
    regions = dict.fromkeys(found, 1 / ranks)
    return ModelParts(ranks, {}, {}, regions, dict.fromkeys(found, 1.0), attention)


def _attends_eagerly(module: nn.Module) -> bool:
    """Whether a model of Hugging Face does not call ``scaled_dot_product_attention``."""
    config: Any = getattr(module, "config", None)
    return getattr(config, "_attn_implementation", None) == "eager"
