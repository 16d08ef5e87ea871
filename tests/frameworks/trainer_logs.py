"""What a Hugging Face ``Trainer`` has logged."""

from __future__ import annotations

from typing import Any

CLOCK = ("runtime", "per_second", "preparation_time")
"""Endings of the names of values that are measured times."""


def logged(trainer: Any, without: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Return a trainer's log without measured times, and ``without`` some keys."""
    history = trainer.state.log_history
    return [
        {k: v for k, v in row.items() if not k.endswith(CLOCK) and k not in without}
        for row in history
    ]


FLOPS = frozenset({"total_flos"})
"""Depends on padding, which differs between a batch and its slices."""
