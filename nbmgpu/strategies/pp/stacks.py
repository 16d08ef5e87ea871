"""Blocks that a model calls one after another, and the ranks that own them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from nbmgpu.errors import StrategyError, format_message


@dataclass(frozen=True, eq=False)
class Stack:
    """Blocks that are divided into stages.

    Attributes:
        names: names of the blocks in the model.
        blocks: the blocks, in the order of their calls.
        stages: index of each block's stage.
        ranks: number of ranks, which take turns with the stages.
    """

    names: tuple[str, ...]
    blocks: tuple[nn.Module, ...]
    stages: tuple[int, ...]
    ranks: int

    def owner(self, index: int) -> int:
        """Return the rank that owns the block with this index."""
        return self.stages[index] % self.ranks


def find_stacks(
    root: nn.Module, ranks: int, stages: int, split_points: Sequence[str] = ()
) -> list[Stack]:
    """Find the blocks in ``root`` that ``ranks`` can share.

    A container is divided if it has a block with parameters for each stage, and no parameter
    belongs to two blocks.  Without such a container, the modules that are attributes of ``root``
    are: where ``forward`` does more than to call them in turn, they do not run at the same time.

    Args:
        root: the outermost module.
        ranks: number of ranks.
        stages: number of stages, a multiple of ``ranks``.
        split_points: names of the blocks that begin a stage, except the first; if empty, stages
            have about the same number of parameters.

    Raises:
        StrategyError: there is no such container, or no such split point.
    """
    found = list(_containers(root, "", max(stages, 2)))
    if not found and _can_divide(tuple(root.children()), max(stages, 2)):
        found = [dict(root.named_children())]
    if split_points:
        return [_stack_with_points(found, ranks, stages, split_points)]
    return [
        Stack(
            tuple(each), tuple(each.values()), balance([*map(_size, each.values())], stages), ranks
        )
        for each in found
    ]


def _containers(module: nn.Module, name: str, stages: int) -> Iterator[dict[str, nn.Module]]:
    """Yield the blocks of the outermost containers that can be divided, by their names."""
    if isinstance(module, nn.Sequential | nn.ModuleList):
        blocks = tuple(module)
        if _can_divide(blocks, stages):
            prefix = f"{name}." if name else ""
            yield {f"{prefix}{i}": block for i, block in enumerate(blocks)}
            return
    for child_name, child in module.named_children():
        yield from _containers(child, f"{name}.{child_name}" if name else child_name, stages)


def _can_divide(blocks: tuple[nn.Module, ...], stages: int) -> bool:
    """Whether the blocks are called, and their parameters can live on different ranks."""
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


def _size(block: nn.Module) -> int:
    return sum(p.numel() for p in block.parameters())


def balance(sizes: Sequence[int], stages: int) -> tuple[int, ...]:
    """Return the stage of each block so that the largest stage is as small as possible.

    Each stage has at least one block with parameters; a block without any is in the stage of the
    one before it.  Dynamic programming over the ends of the stages.
    """
    heavy = [i for i, size in enumerate(sizes) if size]
    totals = [0]
    for i in heavy:
        totals.append(totals[-1] + sizes[i])
    count = len(heavy)
    best = {(0, 0): (0, 0)}  # (stages, blocks): (largest stage, blocks before the last stage)
    for stage in range(1, stages + 1):
        for end in range(stage, count - (stages - stage) + 1):
            best[stage, end] = min(
                (max(best[stage - 1, start][0], totals[end] - totals[start]), start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            )
    begins: set[int] = set()
    end = count
    for stage in range(stages, 1, -1):
        end = best[stage, end][1]
        begins.add(heavy[end])
    return _numbered(len(sizes), begins)


def _numbered(count: int, begins: set[int]) -> tuple[int, ...]:
    """Return stage indices of ``count`` blocks, where new stages begin at ``begins``."""
    stages, stage = [], 0
    for index in range(count):
        stage += index in begins
        stages.append(stage)
    return tuple(stages)


def _stack_with_points(
    found: list[dict[str, nn.Module]],
    ranks: int,
    stages: int,
    points: Sequence[str],
) -> Stack:
    """Return the container that has all ``points``, divided there."""
    for each in found:
        begins = {
            i for i, n in enumerate(each) if any(n == p or n.endswith(f".{p}") for p in points)
        }
        if len(begins) == len(points) == stages - 1 and 0 not in begins:
            return Stack(tuple(each), tuple(each.values()), _numbered(len(each), begins), ranks)
    examples = [name for each in found for name in list(each)[1:]]
    middle = examples[len(examples) // 2] if examples else ""
    raise StrategyError(
        format_message(
            f"--split-points {','.join(points)} does not divide a sequence of layers into "
            f"{stages} stages",
            f"{stages - 1} names of layers in one sequence, such as {middle or 'layers.2'}",
            f"%%mgpu --strategy pp --gpus {ranks}" + f" --split-points {middle}" * (stages == 2),
        )
    )


def no_stack(roots: Sequence[nn.Module], stages: int) -> StrategyError:
    """Return the error for models that cannot be divided."""
    names = " and ".join(dict.fromkeys(type(root).__name__ for root in roots))
    return StrategyError(
        format_message(
            f"{names} has no sequence of {stages} layers that ranks could share: an "
            "nn.Sequential or nn.ModuleList, each layer with parameters of its own, without hooks",
            "pp gives each rank some of the layers of such a sequence",
            "%%mgpu --strategy fsdp",
        )
    )
