"""A training idiom: a cell, the cells before it, and what is known of its run on ranks."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

TRAIN = """
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
"""
"""The usual training loop, for idioms that differ in the cells before it."""


@dataclass(frozen=True)
class Idiom:
    """A cell and the cells before it, with what is known of its run on ranks.

    Attributes:
        rank_local: names that hold what a rank made of its own shard.
        split: whether batches of a loader are split over ranks.
        notices: the topics that must be given.
        ranks: the numbers of ranks to run it on.
        curve: whether the gathered losses are the run's curve, one for one.
    """

    name: str
    cell: str
    setup: str = ""
    rank_local: frozenset[str] = frozenset()
    split: bool = True
    notices: frozenset[str] = frozenset()
    rtol: float = 1e-5
    atol: float = 1e-6
    ranks: tuple[int, ...] = (2,)
    curve: bool = True

    def __str__(self) -> str:
        return self.name


def idiom(
    name: str,
    cell: str = TRAIN,
    *,
    setup: str = "",
    rank_local: str = "",
    notices: str = "",
    **more: Any,
) -> Idiom:
    """Make an idiom from indented sources and words separated by spaces."""
    sets = {"rank_local": frozenset(rank_local.split()), "notices": frozenset(notices.split())}
    return Idiom(name, textwrap.dedent(cell), textwrap.dedent(setup), **sets, **more)
