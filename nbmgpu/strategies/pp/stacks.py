"""Blocks that a model calls one after another, and the ranks that own them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.tp.layer_plan import plan_layers

from .block_sequence import BlockSequence, sequence_of
from .stage_balance import balance, rank_totals, stages_from

SAVING = 0.9
"""Flattened further, a sequence has this fraction of parameters on its largest rank, or less."""

ATTRIBUTES_SAVING = 0.75
"""Likewise for a division by the root's attributes, which ``forward`` may call in any order."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Blocks that are divided into stages.

    Attributes:
        names: names of the blocks in the model.
        blocks: the blocks, in the order of their calls.
        stages: index of each block's stage.
        ranks: number of ranks, which take turns with the stages.
        replaced: instances of ``nn.Sequential`` whose members are blocks.
    """

    names: tuple[str, ...]
    blocks: tuple[nn.Module, ...]
    stages: tuple[int, ...]
    ranks: int
    replaced: tuple[nn.Module, ...] = ()

    @staticmethod
    def of(sequence: BlockSequence, stages: tuple[int, ...], ranks: int) -> Stack:
        """Divide the blocks of ``sequence`` into ``stages``."""
        names, blocks = tuple(sequence.blocks), tuple(sequence.blocks.values())
        return Stack(names, blocks, stages, ranks, sequence.replaced)

    def owner(self, index: int) -> int:
        """Return the rank that owns the block with this index."""
        return self.stages[index] % self.ranks


def find_stacks(
    root: nn.Module,
    ranks: int,
    stages: int,
    split_points: Sequence[str] = (),
    by_time: bool = False,
) -> list[Stack]:
    """Find the blocks in ``root`` that ``ranks`` can share.

    A container is divided if it has a block with parameters for each stage, and no parameter
    belongs to two blocks.  If one of its blocks has more than a rank's share of its parameters, and
    containers inside, those are divided instead, where the rank with most parameters then has
    fewer.  The modules that are attributes of ``root`` are divided where no container is, or
    where this leaves much less on that rank: if ``forward`` does more than to call them in turn,
    they do not run at the same time.

    Args:
        root: the outermost module.
        ranks: number of ranks.
        stages: number of stages, a multiple of ``ranks``.
        split_points: names of the blocks that begin a stage, except the first; if empty, stages
            have about the same number of parameters.
        by_time: whether stages will be balanced by time, for which blocks are as small as possible.

    Raises:
        StrategyError: there is no such container, or no such split point.
    """
    division = _Division(root, ranks, stages, 1.0 if by_time else SAVING)
    if split_points:
        return [division.at(split_points)]
    return division.best()


class _Division:
    """Chooses the sequences of a model that are divided."""

    def __init__(self, root: nn.Module, ranks: int, stages: int, saving: float) -> None:
        """Divide ``root`` into ``stages`` of ``ranks``, flattened where it has this ``saving``."""
        self._saving = saving
        self._root = root
        self._ranks = ranks
        self._stages = stages

    @cached_property
    def _split_by_features(self) -> Collection[nn.Parameter]:
        """Parameters that are split as under ``tp`` where they are in no block."""
        return plan_layers(self._root, self._ranks).dims

    def best(self) -> list[Stack]:
        """Return the stacks that leave fewest parameters on the rank with most."""
        found = self._inside(self._root, "", set())
        attributes = self._stack(sequence_of(self._root, ""))
        if attributes is None or (len(found) == 1 and found[0].names == attributes.names):
            return found
        if not found or (
            self._largest(self._root, [attributes])
            < ATTRIBUTES_SAVING * self._largest(self._root, found)
        ):
            return [attributes]
        return found

    def _inside(self, module: nn.Module, name: str, seen: set[nn.Module]) -> list[Stack]:
        """Return the stacks in ``module``, or ``module`` itself as one."""
        if module in seen:
            return []
        seen.add(module)
        own = self._stack(sequence_of(module, name)) if _is_container(module) else None
        heavy = _heavy_block(own) if own is not None else None
        if own is not None and heavy is None:
            return [own]
        inner = [
            stack
            for child_name, child in module.named_children()
            for stack in self._inside(child, f"{name}.{child_name}" if name else child_name, seen)
        ]
        if own is None:
            return inner
        inside = set() if heavy is None else set(heavy.modules())
        helps = any(inside.issuperset(stack.blocks) for stack in inner) and (
            self._largest(module, inner) < self._largest(module, [own])
        )
        return inner if helps else [own]

    def _stack(self, sequence: BlockSequence | None) -> Stack | None:
        """Divide a sequence, flattened as little as its balance allows; None if it cannot be."""
        best: Stack | None = None
        fewest = float("inf")
        for each in sequence.depths(max(self._stages, 2)) if sequence else ():
            stages = balance(each.sizes, self._stages)
            largest = max(rank_totals(each.sizes, stages, self._ranks))
            if best is None or largest <= self._saving * fewest:
                best, fewest = Stack.of(each, stages, self._ranks), largest
        return best

    def _largest(self, module: nn.Module, stacks: list[Stack]) -> float:
        """Return the parameters in ``module`` on the rank with most, if ``stacks`` are divided."""
        totals = [0.0] * self._ranks
        owned = set()
        for stack in stacks:
            for index, block in enumerate(stack.blocks):
                own = set(block.parameters())
                totals[stack.owner(index)] += sum(p.numel() for p in own)
                owned |= own
        others = set(module.parameters()) - owned
        split = sum(p.numel() for p in others if p in self._split_by_features) / self._ranks
        whole = sum(p.numel() for p in others if p not in self._split_by_features)
        return max(totals) + split + whole

    def _candidates(self) -> Iterator[BlockSequence]:
        """Yield all sequences that can be divided, the outermost and the least flattened first."""
        count = max(self._stages, 2)
        for name, module in self._root.named_modules():
            sequence = sequence_of(module, name) if _is_container(module) else None
            yield from sequence.depths(count) if sequence else ()
        attributes = sequence_of(self._root, "")
        yield from attributes.depths(count) if attributes else ()

    def at(self, points: Sequence[str]) -> Stack:
        """Return the sequence that has all ``points``, divided there.

        Raises:
            StrategyError: there is none.
        """
        names: list[str] = []
        for each in self._candidates():
            begins = {
                i
                for i, name in enumerate(each.blocks)
                if any(name == p or name.endswith(f".{p}") for p in points)
            }
            if len(begins) == len(points) == self._stages - 1 and 0 not in begins:
                return Stack.of(each, stages_from(len(each.blocks), begins), self._ranks)
            names = names or list(each.blocks)
        even = [names[i * len(names) // self._stages] for i in range(1, self._stages)]
        count = f"{len(even)} name{'s' * (len(even) > 1)}"
        raise StrategyError(
            format_message(
                f"--split-points {','.join(points)} does not divide a sequence of layers into "
                f"{self._stages} stages",
                f"{self._stages} stages need {count} of model.named_modules(), of one sequence",
                f"--split-points {','.join(even)}" if names else "%%mgpu --strategy fsdp",
            )
        )


def _heavy_block(stack: Stack) -> nn.Module | None:
    """Return a block with more parameters than a rank that holds its share of them all."""
    sizes = {block: sum(p.numel() for p in block.parameters()) for block in stack.blocks}
    largest = max(sizes, key=sizes.__getitem__)
    return largest if sizes[largest] * stack.ranks > sum(sizes.values()) else None


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential | nn.ModuleList)


def no_stack(roots: Sequence[nn.Module], stages: int) -> StrategyError:
    """Return the error for models that cannot be divided."""
    names = " and ".join(dict.fromkeys(type(root).__name__ for root in roots))
    containers = (m for root in roots for m in root.modules() if _is_container(m))
    longest = max((len(list(m.children())) for m in containers), default=0)
    found = f"; the longest has {longest}" if 1 < longest < stages else ""
    return StrategyError(
        format_message(
            f"{names} has no sequence of {stages} layers that ranks could share: an "
            "nn.Sequential or nn.ModuleList, each layer with parameters of its own, without hooks"
            + found,
            "pp gives each rank some of the layers of such a sequence",
            "%%mgpu --strategy fsdp",
        )
    )
