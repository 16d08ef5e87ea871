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

from .values import ITEM, SHAPE, Value, Values

RELATIVE, ABSOLUTE = 0.05, 1e-3
"""Differences of floats that may be due to rounding, such as in a difference of losses.

Where ranks differ as well, it is not; then ``ABSOLUTE`` is relative, too.
"""

ROUNDING = 1e-4
"""Relative difference up to which two numbers of the same sample are the same."""

FAR = 3.0
"""Distance from rank 0, as a part of the distance of ranks that differ, up to which they do so for
their shards: a clock that the code of the cell does not show is much further on."""

NEAR = 1e-2
"""Distance of a float from the average over ranks, as a part of the distance of ranks, that is due
to shards of unequal sizes."""

INTEGER = re.compile(r"\d+")

CLOSING = ")]}"
"""What ends the text of a container."""

CLOCKS = frozenset({
    "cpu_percent", "date", "datetime", "default_timer", "getloadavg", "max_memory_allocated",
    "memory_allocated", "memory_info", "monotonic", "monotonic_ns", "now", "perf_counter",
    "perf_counter_ns", "process_time", "strftime", "time", "time_ns", "timeit", "today",
    "virtual_memory",
})  # fmt: skip
"""Names in the code of cells that read a clock, or other numbers of the machine."""

STEPS_BY_CHANCE = 4
"""Consecutive steps in which a number must differ where it may do so by chance: seconds, small
differences, and elements of tensors, such as labels."""

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


@dataclass(frozen=True)
class _Difference:
    """A difference in one step.

    Attributes:
        here, there: see ``OtherValue``.
        is_shared: whether some rank has the value of one device, as it has its sample's label.
    """

    here: Value
    there: Value
    is_shared: bool


class ValueComparison:
    """Compares the values of the steps, in order."""

    def __init__(self, reads_clock: Callable[[], bool]) -> None:
        """Compare those of a cell; ``reads_clock`` returns whether it may read a clock.

        That is asked at the first step, when the cell has defined its functions.
        """
        self._reads_clock = functools.cache(reads_clock)
        self._differing: dict[str, list[_Difference]] = {}

    def compare(self, here: Values, there: list[Values], batches: Batches) -> OtherValue | None:
        """Return the first value that differs on ranks, or None.

        Args:
            here: values on one device.
            there: those of all ranks.
            batches: see ``Batches``.
        """
        before, self._differing = self._differing, {}
        for path, mine in here.items():
            theirs = [values[path] for values in there if path in values]
            if len(theirs) == len(there) and self._differs(path, mine, theirs, batches):
                is_sure = not self._reads_clock() and _is_sure(path, mine, theirs)
                difference = _Difference(mine, theirs[0], _is_shared(mine, theirs))
                seen = self._differing[path] = [*before.get(path, []), difference]
                if is_sure or self._is_no_chance(seen):
                    return OtherValue(path.rpartition(SHAPE)[0] or path, mine, theirs[0])
        return None

    def _differs(self, path: str, mine: Value, theirs: list[Value], batches: Batches) -> bool:
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
        if _is_of_tensor(path) and not self._reads_clock():
            return not _is_shared(mine, theirs) and _is_apart(mine, numbers)
        if isinstance(mine, int) and all(isinstance(number, int) for number in numbers):
            return False
        if not self._reads_clock():
            spread = max(numbers) - min(numbers)
            is_as_far = not spread or abs(numbers[0] - mine) <= FAR * spread
            return is_as_far and _is_apart(mine, numbers)
        shards = [sizes for _, sizes in batches if any(sizes)]
        return any(_is_average(mine, numbers, sizes) for sizes in ((1,) * len(numbers), *shards))

    def _is_no_chance(self, seen: list[_Difference]) -> bool:
        """Whether a number has differed in enough steps, and a count has changed in them."""
        if len(seen) < STEPS_BY_CHANCE:
            return False
        may_be_alike = not self._reads_clock() and not any(each.is_shared for each in seen)
        is_constant = len({each.here for each in seen}) < STEPS_BY_CHANCE
        return may_be_alike or not (_are_whole([seen[-1].here]) and is_constant)


def _is_sure(path: str, mine: Value, theirs: list[Value]) -> bool:
    """Whether a value that differs does so by far, and is no label of a sample."""
    if isinstance(mine, str) or _are_whole([mine, *theirs]):
        return not _is_of_tensor(path)
    apart, size = _distance(mine, float(theirs[0]))
    return apart > RELATIVE * size


def _is_of_tensor(path: str) -> bool:
    return path.endswith(ITEM) or SHAPE in path


def _is_shared(mine: Value, theirs: list[Value]) -> bool:
    """Whether some rank has a value, as it has that of its own sample."""
    if isinstance(mine, str):
        return mine in theirs
    numbers = (float(value) for value in theirs)
    return any(math.isclose(number, mine, rel_tol=ROUNDING) for number in numbers)


def _are_whole(values: list[Value]) -> bool:
    return all(not isinstance(value, str) and float(value).is_integer() for value in values)


def _is_apart(mine: float, theirs: list[float]) -> bool:
    """Whether rank 0's number differs by more than rounding."""
    spread = max(theirs) - min(theirs)
    apart, size = _distance(mine, theirs[0])
    limit = max(ABSOLUTE, (ABSOLUTE if spread > ABSOLUTE * size else RELATIVE) * size)
    return math.isfinite(apart) and apart > limit


def _distance(mine: float, other: float) -> tuple[float, float]:
    """Return how far two numbers are apart, and the larger magnitude."""
    return abs(other - mine), max(abs(other), abs(mine))


def _is_average(mine: float, theirs: list[float], sizes: tuple[int, ...]) -> bool:
    """Whether the numbers of ranks differ, and a number is their average, weighted by sizes."""
    spread = max(theirs) - min(theirs)
    total = math.fsum(size * each for size, each in zip(sizes, theirs, strict=True))
    error = abs(total / sum(sizes) - mine)
    return math.isfinite(error) and spread > ABSOLUTE and error <= NEAR * spread


def _ends_early(text: str, whole: str) -> bool:
    """Whether ``text`` has the first items of what ``whole`` shows, as ``[1, 2]`` of ``[1, 2, 3]``.

    Or, of an array that is shown in several lines, the last of these rows.
    """
    items = text.rstrip(CLOSING)
    if "[" not in items or items == text:
        return False
    return whole.startswith(f"{items},") or (
        whole.endswith(",") and whole.rstrip(f"{CLOSING},") == items
    )


def _is_count(mine: float, theirs: list[float]) -> bool:
    """Whether the numbers of ranks add up to another one."""
    return sum(theirs) == mine and any(number != mine for number in theirs)


def _counts_in(mine: str, theirs: list[Value]) -> bool:
    """Whether strings differ in numbers that count, or rank 0's shows the first samples alone."""
    texts = [mine, *map(str, theirs)]
    if _ends_early(texts[1], mine) and mine not in texts[1:]:
        return True
    if len({INTEGER.sub("", text) for text in texts}) > 1:
        return False
    columns = list(zip(*(map(int, INTEGER.findall(text)) for text in texts), strict=True))
    counts = [_is_count(first, rest) for first, *rest in columns]
    return any(counts) and all(
        c or len({*column}) == 1 for c, column in zip(counts, columns, strict=True)
    )
