"""What nbmgpu wants to reach, and whether it does; and where others are faster."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .measure import BASE, CONTROL, OUR_SILENT, SCRIPT, SILENT, Figure, Result, ratio
from .rivals import RIVALS
from .works.ship import (
    AGAIN,
    BEGUN,
    BY_ITSELF,
    FIRST,
    IN_TURN,
    MEMCPY,
    NOTHING,
    READING,
    STEADY,
    THERE,
)

OURS = "nbmgpu"
YARDSTICKS = {"torch clone()", "torch sum()", SILENT, OUR_SILENT, SCRIPT, CONTROL}
"""Rows that are no tools."""
CAVEATS = {rival.name: f" ({rival.caveat})" for rival in RIVALS if rival.caveat}


class Medians:
    """The median of every work and tool, the unit of every work, and those where more is better."""

    def __init__(self, results: Sequence[Result]) -> None:
        """Take what was measured."""
        self.units: dict[str, str] = {}
        self._more: set[str] = set()
        self._values: dict[tuple[str, str], list[float]] = {}
        for result in results:
            if isinstance(result, Figure):
                self._values.setdefault((result.work, result.tool), []).append(result.value)
                self.units[result.work] = result.unit
                if result.more_is_better:
                    self._more.add(result.work)

    def of(self, work: str, tool: str = OURS) -> float:
        """Return a median.

        Raises:
            KeyError: this was not measured.
        """
        return statistics.median(self._values[work, tool])

    def ratio(self, work: str) -> float:
        """Return ours by torchrun's, within rounds where both have all."""
        return ratio(self._values[work, OURS], self._values[work, BASE])

    def better(self, work: str) -> list[tuple[str, float]]:
        """Return the tools that have better figures than ours, the best first."""
        tools = [tool for at, tool in self._values if at == work and tool not in YARDSTICKS]
        if OURS not in tools:
            return []
        sign = -1 if work in self._more else 1
        found = [(tool, self.of(work, tool)) for tool in tools]
        better = (each for each in found if sign * each[1] < sign * self.of(work))
        return sorted(better, key=lambda each: sign * each[1])

    @property
    def works(self) -> list[str]:
        """All works, in the order in which they were done."""
        return list(self.units)


@dataclass(frozen=True)
class Target:
    """A figure and its limit, both from what was measured."""

    what: str
    figure: Callable[[Medians], float]
    limit: Callable[[Medians], float]
    at_least: bool = False

    def row(self, medians: Medians) -> str:
        """Return a row of the table; empty if that was not measured."""
        try:
            figure, limit = self.figure(medians), self.limit(medians)
        except KeyError:
            return ""
        met = figure >= limit if self.at_least else figure <= limit
        sign = "≥" if self.at_least else "≤"
        return f"| {self.what} | {sign} {limit:.3g} | {figure:.3g} | {'yes' if met else '**no**'} |"


def value(work: str) -> Callable[[Medians], float]:
    """The median of our figure."""
    return lambda medians: medians.of(work)


def just(limit: float) -> Callable[[Medians], float]:
    """A limit that depends on nothing."""
    return lambda medians: limit


def within(work: str, seconds: float, what: str) -> Target:
    """No more than so many seconds."""
    return Target(f"{what}, s", value(work), just(seconds))


def against(work: str, limit: float, what: str) -> Target:
    """No more than a multiple of torchrun's."""
    return Target(f"{what}, by torchrun's", lambda medians: medians.ratio(work), just(limit))


WARM, WITH = "warm launch", "warm launch, transformers in the notebook"
COLD = "cold: a fresh kernel's first run: first all_reduce"
LOUD = "2 ranks training"


def _memcpy(medians: Medians, times: float, where: str = BY_ITSELF) -> float:
    """Return so many times what copying a gibibyte takes, as it was measured there."""
    return times * medians.of(f"{where}: {MEMCPY}", "torch clone()")


def _reading(medians: Medians, where: str) -> float:
    """Return what one process takes to read a gibibyte, as it was measured there."""
    return medians.of(f"{where}: {READING}", "torch sum()")


def _shipping(medians: Medians, work: str) -> float:
    """Return what a gibibyte adds to a cell of four numbers, beyond the time of reading it.

    That is the time of both ranks at once, as the same run has had it with pages all mapped.
    """
    return medians.of(work) - medians.of(NOTHING) - medians.of(f"{work}{STEADY}")


def _sending(medians: Medians, work: str) -> float:
    """Return what a gibibyte adds to the time until the ranks have all that they were sent."""
    return medians.of(f"{work}{BEGUN}") - medians.of(f"{NOTHING}{BEGUN}")


TARGETS = (
    within("%load_ext", 0.15, "`%load_ext nbmgpu` keeps the kernel busy"),
    within(f"{WARM}: first all_reduce", 0.20, "warm: to the first all_reduce"),
    within(f"{WITH}: first all_reduce", 0.20, "the same, transformers in the notebook"),
    against(f"{WARM}: first all_reduce", 0.10, "warm: to the first all_reduce"),
    against(f"{WITH}: first all_reduce", 0.10, "the same, transformers in the notebook"),
    within(f"{WARM}: whole cell", 0.35, "a whole trivial cell, warm"),
    against(COLD, 1.0, "cold: first run after `%load_ext`"),
    *(
        Target(
            f"1 GiB to 2 ranks, until both have summed it, {who}, s; "
            "limit: 1.2 memcpy + one process's reading, measured likewise",
            value(work),
            lambda m, where=where: _memcpy(m, 1.2, where) + _reading(m, where),
        )
        for work, who, where in (
            (THERE, "in turn with other tools", IN_TURN),
            (FIRST, "nbmgpu alone", BY_ITSELF),
        )
    ),
    *(
        Target(
            f"memory that 1 GiB to {ranks} adds (PSS), GiB",
            value(f"1 GiB to {ranks}: memory added at most (PSS)"),
            just(1.05),
        )
        for ranks in ("1 rank", "2 ranks", "4 ranks")
    ),
    Target(
        "the same unchanged data again, the whole cell by the first time's",
        lambda m: m.of(AGAIN) / m.of(FIRST),
        just(0.1),
    ),
    Target(
        "the same without what launching and reading take, by the first time's",
        lambda m: _shipping(m, AGAIN) / _shipping(m, FIRST),
        just(0.1),
    ),
    Target(
        "the sending alone: until the cell begins, beyond launching, by the first time's",
        lambda m: _sending(m, AGAIN) / _sending(m, FIRST),
        just(0.1),
    ),
    Target(
        "1 GiB trained: the way back, s; limit: 2 memcpy",
        value("1 GiB trained: the way back"),
        lambda m: _memcpy(m, 2),
    ),
    against("a step, tiny net", 1.05, "a step of a tiny net"),
    against("a step, medium net", 1.01, "a step of a medium net"),
    Target(
        "2 ranks x 1 thread against 1 x 1, compute-bound, x",
        value("2 ranks x 1 thread against 1 x 1, compute-bound"),
        just(1.8),
        at_least=True,
    ),
    Target(
        "lines and points lost in a flood",
        lambda m: m.of(f"{LOUD}: lines lost") + m.of(f"{LOUD}: points lost"),
        just(0),
    ),
    Target(
        "a step of 3 ms with ten lines and a point, by a silent one",
        value(f"{LOUD}: a step with ten lines and a point, against a silent one"),
        just(1.02),
    ),
    Target(
        "a step of 25 ms with ten lines and a point, by a silent one",
        value(f"{LOUD}: a long step with ten lines and a point, against a silent one"),
        just(1.02),
    ),
    within(f"{LOUD}: a click meanwhile, the slowest", 0.2, "the slowest click in a flood"),
)


CAVEAT = (
    "In brackets: where a tool's processes come from, if they are not fresh for every run. What a "
    "run leaves in those that live on, the next one finds; forks of the kernel have the locks of "
    "its threads, but not the threads."
)


def summary(results: Sequence[Result]) -> str:
    """Return Markdown: targets, met or not, and where nbmgpu is not the fastest."""
    medians = Medians(results)
    rows = [row for target in TARGETS if (row := target.row(medians))]
    lines = ["## Targets", "", "| target | limit | measured | met |", "|---|---|---|---|", *rows]
    slower = []
    for work in medians.works:
        for tool, figure in medians.better(work):
            ours, unit = medians.of(work), medians.units[work]
            who = f"{tool}{CAVEATS.get(tool, '')}"
            slower.append(f"- {work}: {who} {figure:.3f} {unit}, nbmgpu {ours:.3f} {unit}")
    if slower:
        lines += ["", "## Where nbmgpu is not the fastest", "", CAVEAT, "", *slower]
    return "\n".join(lines)
