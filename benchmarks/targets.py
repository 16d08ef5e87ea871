"""Targets of nbmgpu, whether it meets them, and where other tools are faster."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .measure import (
    BASE,
    BY_HAND,
    CONTROL,
    INDEPENDENT,
    INDEPENDENT_RANKS,
    SCRIPT,
    Figure,
    Result,
    ratio,
)
from .tools import TOOLS
from .workloads import model_parallel, node_launch, nodes, python_time, steps
from .workloads.transfer import (
    ALL_TOOLS,
    FIRST_RUN,
    FOUR_NUMBERS,
    MEMCPY,
    NBMGPU_ALONE,
    READING,
    SECOND_READ,
    SECOND_RUN,
    UNTIL_CELL,
    WITH_TOOLS,
)

OURS = "nbmgpu"
REFERENCES = {
    "torch clone()", "torch sum()", INDEPENDENT, INDEPENDENT_RANKS, SCRIPT, CONTROL,
    nodes.COPY, nodes.OVER_TCP, nodes.WRITING, nodes.SENDING,
}  # fmt: skip
"""Rows that are not tools."""
CAVEATS = {tool.name: f" ({tool.caveat})" for tool in TOOLS if tool.caveat}


class Medians:
    """The medians by workload and tool, and each workload's unit and direction."""

    def __init__(self, results: Sequence[Result]) -> None:
        """Group ``results`` by workload and tool."""
        self.units: dict[str, str] = {}
        self._more: set[str] = set()
        self._values: dict[tuple[str, str], list[float]] = {}
        for result in results:
            if isinstance(result, Figure):
                self._values.setdefault((result.workload, result.tool), []).append(result.value)
                self.units[result.workload] = result.unit
                if result.more_is_better:
                    self._more.add(result.workload)

    def of(self, workload: str, tool: str = OURS) -> float:
        """Return a median.

        Raises:
            KeyError: it was not measured.
        """
        return statistics.median(self._values[workload, tool])

    def ratio(self, workload: str, base: str = BASE) -> float:
        """Return the ratio of nbmgpu to ``base``, within rounds if both have all of them."""
        return ratio(self._values[workload, OURS], self._values[workload, base])

    def difference(self, workload: str, base: str = BASE) -> float:
        """Return by how much nbmgpu's figure exceeds that of ``base`` in a round, the median."""
        rounds = zip(self._values[workload, OURS], self._values[workload, base], strict=True)
        return statistics.median(ours - other for ours, other in rounds)

    def better(self, workload: str) -> list[tuple[str, float]]:
        """Return the tools with better figures than nbmgpu's, the best first."""
        tools = [tool for at, tool in self._values if at == workload and tool not in REFERENCES]
        if OURS not in tools:
            return []
        sign = -1 if workload in self._more else 1
        found = [(tool, self.of(workload, tool)) for tool in tools]
        better = (each for each in found if sign * each[1] < sign * self.of(workload))
        return sorted(better, key=lambda each: sign * each[1])

    @property
    def workloads(self) -> list[str]:
        """All workloads, in the order of measurement."""
        return list(self.units)


@dataclass(frozen=True)
class Target:
    """A figure and its limit, both computed from the measurements."""

    what: str
    figure: Callable[[Medians], float]
    limit: Callable[[Medians], float]
    at_least: bool = False

    def row(self, medians: Medians) -> str:
        """Return a row of the table; empty if the figure was not measured."""
        try:
            figure, limit = self.figure(medians), self.limit(medians)
        except KeyError:
            return ""
        met = figure >= limit if self.at_least else figure <= limit
        sign = "≥" if self.at_least else "≤"
        return f"| {self.what} | {sign} {limit:.3g} | {figure:.3g} | {'yes' if met else '**no**'} |"


def value(workload: str) -> Callable[[Medians], float]:
    """Return the function that gives nbmgpu's median."""
    return lambda medians: medians.of(workload)


def constant(limit: float) -> Callable[[Medians], float]:
    """Return a limit that does not depend on the measurements."""
    return lambda medians: limit


def beyond_by_hand(workload: str) -> Callable[[Medians], float]:
    """Return the function that gives how much more nbmgpu needs than the code by hand."""
    return lambda medians: medians.difference(workload, BY_HAND)


def within(workload: str, seconds: float, what: str) -> Target:
    """Return a target of at most ``seconds``."""
    return Target(f"{what}, s", value(workload), constant(seconds))


def against(workload: str, limit: float, what: str) -> Target:
    """Return a target of at most ``limit`` times torchrun's figure."""
    return Target(
        f"{what}, ratio to torchrun", lambda medians: medians.ratio(workload), constant(limit)
    )


WARM, WITH = "warm launch", "warm launch, transformers in the notebook"
COLD = "cold: a fresh kernel's first run: first all_reduce"
LOUD = "2 ranks training"


def _memcpy(medians: Medians, times: float, where: str = NBMGPU_ALONE) -> float:
    """Return a multiple of the time of copying 1 GiB, measured in the table ``where``."""
    return times * medians.of(f"{where}: {MEMCPY}", "torch clone()")


def _reading(medians: Medians, where: str) -> float:
    """Return the time in which one process reads 1 GiB, measured in the table ``where``."""
    return medians.of(f"{where}: {READING}", "torch sum()")


def _shipping(medians: Medians, workload: str) -> float:
    """Return the time that 1 GiB adds to a cell with four numbers, without reading it.

    Reading is both ranks' time in the same run, when all pages are mapped.
    """
    return medians.of(workload) - medians.of(FOUR_NUMBERS) - medians.of(f"{workload}{SECOND_READ}")


def _sending(medians: Medians, workload: str) -> float:
    """Return the time that 1 GiB adds until the ranks have all data that was sent."""
    return medians.of(f"{workload}{UNTIL_CELL}") - medians.of(f"{FOUR_NUMBERS}{UNTIL_CELL}")


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
            "limit: 1.2 memcpy + one process's reading, measured in the same way",
            value(workload),
            lambda m, where=where: _memcpy(m, 1.2, where) + _reading(m, where),
        )
        for workload, who, where in (
            (ALL_TOOLS, "in turn with other tools", WITH_TOOLS),
            (FIRST_RUN, "nbmgpu alone", NBMGPU_ALONE),
        )
    ),
    *(
        Target(
            f"memory that 1 GiB to {ranks} adds (PSS), GiB",
            value(f"1 GiB to {ranks}: peak memory added (PSS)"),
            constant(1.05),
        )
        for ranks in ("1 rank", "2 ranks", "4 ranks")
    ),
    Target(
        "1 GiB to 2 nodes without its files, ratio to one copy per node over TCP",
        value(nodes.RATIO),
        constant(1.3),
    ),
    *(
        Target(
            f"{where}, ratio to by hand",
            lambda m, where=where: m.ratio(where, BY_HAND),
            constant(1.2),
        )
        for where in node_launch.WORKLOADS
    ),
    Target(
        "the same unchanged data again, whole cell, ratio to the first run",
        lambda m: m.of(SECOND_RUN) / m.of(FIRST_RUN),
        constant(0.1),
    ),
    Target(
        "the same without launching and reading, ratio to the first run",
        lambda m: _shipping(m, SECOND_RUN) / _shipping(m, FIRST_RUN),
        constant(0.1),
    ),
    Target(
        "sending alone: until the cell begins, without launching, ratio to the first run",
        lambda m: _sending(m, SECOND_RUN) / _sending(m, FIRST_RUN),
        constant(0.1),
    ),
    Target(
        "1 GiB trained: write-back, s; limit: 2 memcpy",
        value("1 GiB trained: write-back"),
        lambda m: _memcpy(m, 2),
    ),
    against("a step, tiny net", 1.05, "a step of a tiny net"),
    against("a step, medium net", 1.01, "a step of a medium net"),
    *(against(f"a step, {net.name}", 1.5, f"a step of {net.name}") for net in steps.EXACT[1:]),
    *(
        Target(f"{workload}, beyond by hand, µs", beyond_by_hand(workload), constant(limit))
        for workload, limit in python_time.LIMITS.items()
    ),
    *(
        Target(
            f"{model_parallel.workload(case)}, ratio to by hand",
            lambda m, case=case: m.ratio(model_parallel.workload(case), BY_HAND),
            constant(1.05),
        )
        for case in model_parallel.CASES
    ),
    Target(
        "2 ranks x 1 thread against 1 x 1, compute-bound, x",
        value("2 ranks x 1 thread against 1 x 1, compute-bound"),
        constant(1.8),
        at_least=True,
    ),
    Target(
        "lines and metrics lost under heavy output",
        lambda m: m.of(f"{LOUD}: lines lost") + m.of(f"{LOUD}: metrics lost"),
        constant(0),
    ),
    Target(
        "a step of 3 ms with ten lines and a metric, ratio to a silent step",
        value(f"{LOUD}: a step with ten lines and a metric, against a silent one"),
        constant(1.02),
    ),
    Target(
        "a step of 25 ms with ten lines and a metric, ratio to a silent step",
        value(f"{LOUD}: a long step with ten lines and a metric, against a silent one"),
        constant(1.02),
    ),
    within(
        f"{LOUD}: the slowest response of the panel",
        0.2,
        "the slowest response of the panel under heavy output",
    ),
)


CAVEAT = (
    "In parentheses: where a tool's processes come from, if they are not fresh for every run. A "
    "run finds the state that the previous one has left in persistent processes; forks of the "
    "kernel have the locks of its threads, but not the threads."
)


def summary(results: Sequence[Result]) -> str:
    """Return Markdown: the targets, and where nbmgpu is not the fastest."""
    medians = Medians(results)
    rows = [row for target in TARGETS if (row := target.row(medians))]
    lines = ["## Targets", "", "| target | limit | measured | met |", "|---|---|---|---|", *rows]
    slower = []
    for workload in medians.workloads:
        for tool, figure in medians.better(workload):
            ours, unit = medians.of(workload), medians.units[workload]
            who = f"{tool}{CAVEATS.get(tool, '')}"
            slower.append(f"- {workload}: {who} {figure:.3f} {unit}, nbmgpu {ours:.3f} {unit}")
    if slower:
        lines += ["", "## Where nbmgpu is not the fastest", "", CAVEAT, "", *slower]
    return "\n".join(lines)
