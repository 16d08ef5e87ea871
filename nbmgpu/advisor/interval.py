"""A number that is not known exactly: from ``low`` to ``high``; and bytes as they are given."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_bytes

KIB = 1 << 10
POWERS = {"": 1.0} | {
    f"{prefix}{suffix}": float(base**power)
    for power, prefix in enumerate("KMGT", 1)
    for suffix, base in (("", KIB), ("B", 1000), ("iB", KIB))
}


@dataclass(frozen=True)
class Span:
    """Bytes, from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Span:
        """Return a span without width."""
        return cls(value, value)

    def __add__(self, other: Span) -> Span:
        """Add two numbers, neither of which is known exactly."""
        return Span(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Span:
        """Take ``factor`` of it."""
        return Span(self.low * factor, self.high * factor)

    def beyond(self, other: Span) -> Span:
        """Return how much more this is than ``other``; nothing where it is less."""
        return Span(max(0.0, self.low - other.low), max(0.0, self.high - other.high))


def at_least(*spans: Span) -> Span:
    """Return the largest of ``spans``, by each of its ends."""
    return Span(max(s.low for s in spans), max(s.high for s in spans))


def span_in_words(low: float, high: float) -> str:
    """Write a range of bytes: ``1.2 to 1.6 GiB``; one number where both read alike."""
    first, last = format_bytes(low), format_bytes(high)
    if first == last:
        return last
    number, unit = first.split(" ")
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


def read_bytes(value: float | str) -> int:
    """Return the bytes that ``value`` says: a number, or ``80 GB``, ``24GiB``, ``512M``.

    Raises:
        OptionError: it says nothing of the kind.
    """
    number, unit = value, ""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?|bytes)\s*", value, re.IGNORECASE)
        if found:
            number, unit = found[1], found[2]
    name = unit[:1].upper() + unit[1:].replace("b", "B").replace("I", "i")
    size = POWERS.get("" if name in ("B", "Bytes") else name)
    try:
        amount = float(number) * (size or 0)
    except (TypeError, ValueError):
        amount = 0.0
    if not 0 < amount < float("inf"):
        allowed = "It is given in bytes, or as text with a unit"
        raise OptionError(format_message(f"{value!r} is no amount of memory", allowed, "memory='80 GB'"))
    return int(amount)
