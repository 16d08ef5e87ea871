"""Which of the values that a cell keeps one device would not have.

Ranks on shards count their own samples, in ``n += len(x)``, and gradients do not show that.  An
integer is a count if those of all ranks add up to that of one device; so is a float that has no
decimals.  Process ids and sizes of memory drop out in this way.  Another float is compared as it
is, unless the cell reads a clock: then only where it is the average over ranks.  What may be so by
chance, such as a time or a label, must be so in each step.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from .values import ITEM, SHAPE, SUM, Value, Values

RELATIVE, ABSOLUTE = 0.05, 1e-3
"""Differences of floats that may be due to rounding, such as in a difference of losses."""

FAR = 3.0
"""Distance from rank 0, as a part of the distance of ranks that differ, up to which they do so for
their shards: a clock that the code of the cell does not show is much further on."""

NEAR = 1e-2
"""Distance of a float from the average over ranks, as a part of the distance of ranks, that is due
to shards of unequal sizes."""

INTEGER = re.compile(r"\d+")

CLOCKS = frozenset({
    "cpu_percent", "date", "datetime", "default_timer", "getloadavg", "max_memory_allocated",
    "memory_allocated", "memory_info", "monotonic", "monotonic_ns", "now", "perf_counter",
    "perf_counter_ns", "process_time", "strftime", "time", "time_ns", "timeit", "today",
    "virtual_memory",
})  # fmt: skip
"""Names in the code of cells that read a clock, or other numbers of the machine."""

STEPS_BY_CHANCE = 4
"""Consecutive steps in which a count must differ where numbers may add up by chance: seconds, and
elements of tensors, such as labels."""

Batches = frozenset[tuple[int, tuple[int, ...]]]
"""How many samples batches had until now: the whole one, and each rank's shard."""


@dataclass(frozen=True)
class OtherValue:
    """A value that ranks keep and one device would not.

    Attributes:
        path: the expression that has it.
        here: the value on one device.
        there: the value on rank 0.
    """

    path: str
    here: Value
    there: Value


class ValueComparison:
    """Compares the values of the steps, in order."""

    def __init__(self, reads_clock: Callable[[], bool]) -> None:
        """Compare those of a cell; ``reads_clock`` returns whether it may read a clock.

        That is asked at the first step, when the cell has defined its functions.
        """
        self._reads_clock = functools.cache(reads_clock)
        self._differing: dict[str, list[Value]] = {}

    def compare(self, here: Values, there: list[Values], batches: Batches) -> OtherValue | None:
        """Return the first value that differs on ranks, or None.

        Args:
            here: values on one device.
            there: those of all ranks.
            batches: see ``Batches``.
        """
        reads_clock = self._reads_clock()
        found = self._differences(here, there, batches, reads_clock)
        if not found:
            self._differing.clear()
            return None
        self._differing = {path: [*self._differing.get(path, []), here[path]] for path in found}
        sure = (
            path
            for path, values in self._differing.items()
            if not (reads_clock or _is_of_tensor(path)) or _is_no_chance(values)
        )
        path = next(sure, None)
        if path is None:
            return None
        return OtherValue(path.rpartition(SHAPE)[0] or path, here[path], found[path])

    @staticmethod
    def _differences(
        here: Values, there: list[Values], batches: Batches, reads_clock: bool
    ) -> Values:
        found: Values = {}
        for path, mine in here.items():
            theirs = [values[path] for values in there if path in values]
            if len(theirs) == len(there) and _differs(path, mine, theirs, batches, reads_clock):
                found[path] = theirs[0]
        return found


def _is_of_tensor(path: str) -> bool:
    return path.endswith(ITEM) or f"{SUM}{SHAPE}" in path


def _is_no_chance(values: list[Value]) -> bool:
    """Whether a number has differed in enough steps, and a count has changed in them."""
    is_constant = _are_whole([values[-1]]) and len(set(values)) < STEPS_BY_CHANCE
    return len(values) >= STEPS_BY_CHANCE and not is_constant


def _are_whole(values: list[Value]) -> bool:
    return all(not isinstance(value, str) and float(value).is_integer() for value in values)


def _differs(
    path: str, mine: Value, theirs: list[Value], batches: Batches, reads_clock: bool
) -> bool:
    if isinstance(mine, str):
        return all(isinstance(value, str) for value in theirs) and _counts_in(mine, theirs)
    numbers = [value for value in theirs if not isinstance(value, str)]
    if len(numbers) < len(theirs):
        return False
    is_name = path.removesuffix(ITEM).rpartition(").")[2].isidentifier()
    if is_name and (mine, tuple(numbers)) in batches:
        return False  # the size of a batch, which that of the next one replaces
    if _are_whole([mine, *numbers]) and _is_count(mine, numbers):
        return True
    if isinstance(mine, int) and all(isinstance(number, int) for number in numbers):
        return False
    if not reads_clock:
        return _is_apart(mine, numbers)
    shards = [sizes for _, sizes in batches if any(sizes)]
    return any(_is_average(mine, numbers, sizes) for sizes in ((1,) * len(numbers), *shards))


def _is_apart(mine: float, theirs: list[float]) -> bool:
    """Whether rank 0's number differs by more than rounding, and about as ranks differ."""
    first, spread = theirs[0], max(theirs) - min(theirs)
    apart = abs(first - mine)
    is_as_far = not spread or apart <= FAR * spread
    limit = max(ABSOLUTE, RELATIVE * max(abs(first), abs(mine)))
    return math.isfinite(apart) and is_as_far and apart > limit


def _is_average(mine: float, theirs: list[float], sizes: tuple[int, ...]) -> bool:
    """Whether the numbers of ranks differ, and a number is their average, weighted by sizes."""
    spread = max(theirs) - min(theirs)
    total = math.fsum(size * each for size, each in zip(sizes, theirs, strict=True))
    error = abs(total / sum(sizes) - mine)
    return math.isfinite(error) and spread > ABSOLUTE and error <= NEAR * spread


def _is_count(mine: float, theirs: list[float]) -> bool:
    """Whether the numbers of ranks add up to another one."""
    return sum(theirs) == mine and any(number != mine for number in theirs)


def _counts_in(mine: str, theirs: list[Value]) -> bool:
    """Whether strings differ in numbers that count."""
    texts = [mine, *map(str, theirs)]
    if len({INTEGER.sub("", text) for text in texts}) > 1:
        return False
    columns = list(zip(*(map(int, INTEGER.findall(text)) for text in texts), strict=True))
    counts = [_is_count(first, rest) for first, *rest in columns]
    return any(counts) and all(
        c or len({*column}) == 1 for c, column in zip(counts, columns, strict=True)
    )
