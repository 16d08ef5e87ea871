"""How blocks are divided into stages, none of which has much more to do than the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def balance(sizes: Sequence[int], stages: int) -> tuple[int, ...]:
    """Return the stage of each block so that the largest stage is as small as possible.

    Each stage has at least one block with a size; a block of size 0 is in the stage of the one
    before it.  Dynamic programming over the ends of the stages.

    Args:
        sizes: of the blocks, in the order of their calls: elements of parameters, or time.
        stages: number of stages, at most that of the blocks with a size.
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
    return stages_from(len(sizes), begins)


def stages_from(count: int, begins: set[int]) -> tuple[int, ...]:
    """Return stage indices of ``count`` blocks, where new stages begin at ``begins``."""
    stages, stage = [], 0
    for index in range(count):
        stage += index in begins
        stages.append(stage)
    return tuple(stages)


def rank_totals(sizes: Iterable[float], stages: Iterable[int], ranks: int) -> list[float]:
    """Return the sum of the sizes of each rank's blocks; ranks take turns with the stages."""
    totals = [0.0] * ranks
    for size, stage in zip(sizes, stages, strict=True):
        totals[stage % ranks] += size
    return totals
