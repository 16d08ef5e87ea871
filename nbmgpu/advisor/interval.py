"""Byte counts with a lower and an upper bound; parsing and formatting of byte counts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_bytes

KIB = 1 << 10
MULTIPLIERS = {"": 1.0} | {
    f"{prefix}{suffix}": float(base**power)
    for power, prefix in enumerate("KMGT", 1)
    for suffix, base in (("", KIB), ("B", 1000), ("iB", KIB))
}


@dataclass(frozen=True)
class Interval:
    """A number of bytes between ``low`` and ``high``."""

    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return an interval of zero width."""
        return cls(value, value)

    def __add__(self, other: Interval) -> Interval:
        """Add both bounds."""
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Interval:
        """Scale both bounds by ``factor``."""
        return Interval(self.low * factor, self.high * factor)


def maximum(*intervals: Interval) -> Interval:
    """Return the largest lower bound and the largest upper bound of ``intervals``."""
    return Interval(max(i.low for i in intervals), max(i.high for i in intervals))


def format_interval(low: float, high: float) -> str:
    """Format a range of bytes, such as ``1.2 to 1.6 GiB``.

    One number is returned where both bounds are formatted alike.
    """
    first, last = format_bytes(low), format_bytes(high)
    if first == last:
        return last
    number, unit = first.split(" ")
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


def parse_bytes(value: float | str) -> int:
    """Parse a number of bytes: a number, or text such as ``80 GB``, ``24GiB`` or ``512M``.

    Raises:
        OptionError: ``value`` is not a positive, finite number of bytes.
    """
    number, unit = value, ""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?|bytes)\s*", value, re.IGNORECASE)
        if match:
            number, unit = match[1], match[2]
    name = unit[:1].upper() + unit[1:].replace("b", "B").replace("I", "i")
    multiplier = MULTIPLIERS.get("" if name in ("B", "Bytes") else name)
    try:
        size = float(number) * (multiplier or 0)
    except (TypeError, ValueError):
        size = 0.0
    if not 0 < size < float("inf"):
        what = f"{value!r} is not an amount of memory"
        allowed = "Give a number of bytes, or text with a unit"
        raise OptionError(format_message(what, allowed, "memory='80 GB'"))
    return int(size)
