"""A step under nbmgpu beside one by hand: measured in turns, because machines change speed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from nbmgpu.formatting import format_bytes

from .check import Finding
from .setting import Setting

LIMIT = 1.02
"""How long a step may take, in steps by hand."""

NO_LIMIT = f" (the limit of {LIMIT} is for a GPU per rank)"

ROUNDS = 5
"""Measurements of each side; an odd number, whose median is one of them."""

Measured = dict[str, float]
"""Seconds and bytes of a step: ``step``, ``cpu`` and ``peak``."""


@dataclass(frozen=True)
class StepRatio:
    """Steps that were measured in turns.

    Attributes:
        ours, other: what was measured in each round.
    """

    ours: tuple[Measured, ...]
    other: tuple[Measured, ...]

    @property
    def ratios(self) -> list[float]:
        """Of the times of a step, in each round."""
        return [a["step"] / b["step"] for a, b in zip(self.ours, self.other, strict=True)]

    @property
    def median(self) -> float:
        """The median of the ratios: one round that something else has disturbed does not count."""
        return statistics.median(self.ratios)

    def finding(self, name: str, setting: Setting, ranks: int) -> Finding:
        """Return what was found beside the loop called ``name``."""
        ours, other = _median(self.ours), _median(self.other)
        is_limited = setting.gpus > 1 or (setting.gpus == 1 and ranks == 1)
        text = (
            f"{self.median:.3f} x {name}{'' if is_limited else NO_LIMIT}: "
            f"{ours['step'] * 1e3:.2f} ms{f' on {ranks} ranks' if ranks > 1 else ''} and "
            f"{other['step'] * 1e3:.2f} ms; {min(self.ratios):.3f} to {max(self.ratios):.3f} x in "
            f"{len(self.ratios)} rounds; {(ours['cpu'] - other['cpu']) * 1e6:+.0f} us of the host"
        )
        if other["peak"]:
            text += f"; {format_bytes(ours['peak'])} at most, {name} {format_bytes(other['peak'])}"
        is_above = is_limited and self.median > LIMIT
        warning = f"above the limit of {LIMIT}" if is_above else ""
        values: dict[str, float | str] = {f"ours_{key}": value for key, value in ours.items()}
        values |= {f"other_{key}": value for key, value in other.items()}
        values |= {"ratio": self.median, "limit": LIMIT}
        values |= {f"ratio_{i}": ratio for i, ratio in enumerate(self.ratios, 1)}
        return Finding(text, values, warning)


def in_turns(
    ours: Callable[[], Measured], other: Callable[[], Measured], rounds: int = ROUNDS
) -> StepRatio:
    """Measure both sides ``rounds`` times in turns; each is the first of every second round."""
    found: dict[Callable[[], Measured], list[Measured]] = {ours: [], other: []}
    for number in range(rounds):
        for measure in (ours, other) if number % 2 == 0 else (other, ours):
            found[measure].append(measure())
    return StepRatio(tuple(found[ours]), tuple(found[other]))


def _median(measured: tuple[Measured, ...]) -> Measured:
    return {key: statistics.median(each[key] for each in measured) for key in measured[0]}
