"""Checks that cells give on ranks the numbers of one device, under every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbmgpu.strategies import profile_of, strategy_names

from .cells import BF16, CELLS, FP16, WHOLE_BATCH
from .check import Check, CheckSkipped, Finding
from .comparison import Cell, compare
from .setting import Setting

FOUR_RANKS = {"hsdp": 4, "fsdp+tp": 4, "tp+pp": 4, "fsdp+pp": 4, "fsdp+tp+pp": 8}
"""Ranks of the strategies whose mesh has several dimensions; others have two."""

EXACT = ("ddp", "zero1", "fsdp")
"""Strategies under which ``--exact always`` is checked."""


def checks() -> list[Check]:
    """Return the checks of this group."""
    return list(_checks())


def _checks() -> Iterator[Check]:
    for strategy in strategy_names():
        for cell in (*CELLS, BF16, FP16):
            yield _check(strategy, cell)
    for strategy in EXACT:
        for cell in WHOLE_BATCH:
            yield _check(strategy, cell, exact="always")
    yield _check("ddp", WHOLE_BATCH[0], exact="auto")


def _check(strategy: str, cell: Cell, **options: Any) -> Check:
    def function(setting: Setting) -> Finding:
        ranks = _ranks(strategy, setting)
        return compare(cell, setting, ranks, strategy=strategy, **options)

    name = ", ".join((strategy, *(f"{key} {value}" for key, value in options.items()), cell.name))
    return Check("numbers", name, function, cell.quick)


def _ranks(strategy: str, setting: Setting) -> int:
    """Return on how many ranks a strategy is checked.

    Raises:
        CheckSkipped: it cannot run here.
    """
    setting.require_strategy(strategy)
    if profile_of(strategy).in_one_process:
        return max(1, setting.gpus)
    ranks = FOUR_RANKS.get(strategy, 2)
    if ranks > setting.most_ranks:
        if setting.gpus > 1:
            raise CheckSkipped(f"needs {ranks} GPUs")
        most = f"have {setting.most_ranks} at most on one GPU or the CPU"
        raise CheckSkipped(f"needs {ranks} ranks; checks {most}")
    return ranks
