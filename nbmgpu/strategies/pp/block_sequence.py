"""Sequences of modules in a model that could be the blocks of a pipeline.

An ``nn.Sequential`` does nothing but to call its members in turn.  So one that is a member of
another container can be a block, or be replaced by its own members: then a stage may begin inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import nn
from torch.nn.parameter import is_lazy

from nbmgpu.strategies.module_copy import has_hooks


@dataclass(frozen=True, eq=False)
class BlockSequence:
    """Modules that are called one after another.

    Attributes:
        blocks: the modules by their names in the model, in the order of their calls.
        replaced: instances of ``nn.Sequential`` in whose place their members are.
    """

    blocks: dict[str, nn.Module]
    replaced: tuple[nn.Module, ...] = ()

    @cached_property
    def sizes(self) -> list[int]:
        """Number of elements of each block's parameters."""
        return [sum(p.numel() for p in block.parameters()) for block in self.blocks.values()]

    def can_divide(self, stages: int) -> bool:
        """Whether the blocks are called, and their parameters can live on different ranks.

        Args:
            stages: number of blocks with parameters that there must be.
        """
        blocks = tuple(self.blocks.values())
        if len(set(blocks)) != len(blocks) or not all(map(is_called, blocks)):
            return False
        parameters = [set(block.parameters()) for block in blocks]
        uses = Counter(p for own in parameters for p in own)
        return (
            sum(map(bool, parameters)) >= stages
            and all(count == 1 for count in uses.values())
            and all(_can_own(p) for p in uses)
            and not any(getattr(m, "sparse", False) is True for b in blocks for m in b.modules())
        )

    def flattened(self) -> BlockSequence | None:
        """Return it with members in place of each ``nn.Sequential``; None if there is none."""
        blocks: dict[str, nn.Module] = {}
        replaced: list[nn.Module] = []
        for name, block in self.blocks.items():
            members = _members(block, name)
            if members is None:
                blocks[name] = block
            else:
                blocks |= members.blocks
                replaced.append(block)
        return BlockSequence(blocks, (*self.replaced, *replaced)) if replaced else None

    def depths(self, stages: int) -> Iterator[BlockSequence]:
        """Yield it flattened not at all, once, twice, and so on, where it can be divided."""
        sequence: BlockSequence | None = self
        while sequence is not None:
            if sequence.can_divide(stages):
                yield sequence
            sequence = sequence.flattened()


def sequence_of(container: nn.Module, name: str) -> BlockSequence | None:
    """Return the members of ``container``; None if one is there twice.

    Args:
        container: the container, or a module whose attributes are meant.
        name: its name in the model; empty for the model itself.
    """
    members = {f"{name}.{n}" if name else n: m for n, m in container.named_children()}
    if isinstance(container, nn.Sequential | nn.ModuleList) and len(members) != len(container):
        return None
    return BlockSequence(members)


def _members(block: nn.Module, name: str) -> BlockSequence | None:
    """Return the members of a block that does nothing but to call them in turn; None if it may.

    Hooks would see its input and output before they are computed, and parameters of its own would
    be in no block.
    """
    if (
        type(block) is not nn.Sequential
        or not len(block)
        or "forward" in vars(block)
        or block._compiled_call_impl is not None
        or has_hooks(block)
        or any(True for _ in block.parameters(recurse=False))
        or any(True for _ in block.buffers(recurse=False))
    ):
        return None
    members = sequence_of(block, name)
    return members if members is not None and members.can_divide(0) else None


def is_called(module: nn.Module) -> bool:
    """Whether ``module`` has a forward pass: a ModuleList has none."""
    return type(module).forward is not nn.Module.forward


def _can_own(parameter: nn.Parameter) -> bool:
    return (
        type(parameter) is nn.Parameter
        and not is_lazy(parameter)
        and parameter.is_floating_point()
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )
