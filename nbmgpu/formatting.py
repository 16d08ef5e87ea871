"""Formats bytes, counts and time limits; labextension/src/view/format.ts formats bytes alike."""

from __future__ import annotations

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(size: float) -> str:
    """Format a number of bytes with a binary unit: ``1.4 GiB``."""
    unit = 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = 0 if unit == 0 or size >= 99.5 else 1
    return f"{size:.{digits}f} {UNITS[unit]}"


def format_communication(nbytes: float, collectives: float) -> str:
    """Format what a rank sends in a step: ``1.4 MiB in 3 collectives``; empty for nothing."""
    if not nbytes:
        return ""
    calls = round(collectives)
    return format_bytes(nbytes) + (f" in {format_count(calls, 'collective')}" if calls else "")


def format_limit(seconds: float) -> str:
    """Format a time limit in the largest unit that it is a whole number of: ``8 h``, ``90 min``."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def format_count(number: int, noun: str) -> str:
    """Format a number with a noun: ``1 core`` or ``2 cores``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
