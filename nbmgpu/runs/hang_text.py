"""The report of a hang, as text."""

from __future__ import annotations

from .events import Hang


def hang_headline(hang: Hang) -> str:
    """Return how long ranks have waited, and why: one sentence without a period."""
    return f"No progress for {hang.seconds:.0f} s. {hang.cause}"


def hang_report(hang: Hang) -> str:
    """Return the cause, then where each rank waits, with its Python stack below."""
    lines = [f"{hang_headline(hang)}."]
    for place, stack in zip(hang.places, hang.stacks, strict=True):
        lines.append(place)
        frames = stack.splitlines()
        if len(frames) > 1:  # a single frame is in the sentence
            lines += [f"    {frame}" for frame in frames]
    return "\n".join(lines)


def hang_notice(hang: Hang) -> str:
    """Return the report, with what to do; for a run that goes on."""
    way = f"Try: {hang.remedy}. " if hang.remedy else ""
    stop = "Stop ends the run and brings back what was trained, if rank 0 answers"
    return f"{hang_report(hang)}\n{way}{stop}; --on-hang stop does so by itself."
