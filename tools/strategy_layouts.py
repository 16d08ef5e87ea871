"""What lies on which rank under each strategy, for the pictures in docs/strategies-in-pictures.md.

The model has four layers, each of which has four parts, and a batch has four samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SIZE = 4
"""Layers of the model, parts of a layer, and samples of a batch."""

ALL = frozenset(range(SIZE))

Cells = frozenset[tuple[int, int]]
"""Pairs of a layer and a part of it, or of a layer and a sample."""


EVERYTHING: Cells = frozenset((layer, column) for layer in ALL for column in ALL)


def cells(layers: frozenset[int] = ALL, columns: frozenset[int] = ALL) -> Cells:
    """Return some columns of some layers."""
    return frozenset((layer, column) for layer in layers for column in columns)


@dataclass(frozen=True)
class Rank:
    """What one rank holds.

    Attributes:
        parameters, gradients, states: the parts of layers that it stores between steps or, for
            gradients, from one backward pass to the next step.
        gathered: parameters that it has for a moment during a step, besides its own.
        reduced: gradients that it has for a moment.
        activations: the layers and samples that it computes.
        share: which part of each of these activations, as a numerator and a denominator.
        place: its position in the device mesh, or empty.
        host: whether the optimizer states are in the memory of the host.
    """

    parameters: Cells = EVERYTHING
    gradients: Cells = EVERYTHING
    states: Cells = EVERYTHING
    gathered: Cells = frozenset()
    reduced: Cells = frozenset()
    activations: Cells = EVERYTHING
    share: tuple[int, int] = (0, 1)
    place: str = ""
    host: bool = False

    @property
    def samples(self) -> frozenset[int]:
        """The samples that it trains on."""
        return frozenset(sample for _, sample in self.activations)


@dataclass(frozen=True)
class Picture:
    """A picture of one strategy.

    Attributes:
        name: the strategy.
        alt: the picture in words.
        ranks: what each rank holds.
        who: what a box stands for.
    """

    name: str
    alt: str
    ranks: tuple[Rank, ...]
    who: str = "rank"

    @property
    def file(self) -> str:
        """The name of the picture's file."""
        return f"{self.name.replace('+', '-')}.svg"


def part(index: int, of: int) -> frozenset[int]:
    """Return the ``index``-th of ``of`` equal parts."""
    width = SIZE // of
    return frozenset(range(index * width, (index + 1) * width))


def sharded(columns: frozenset[int], samples: frozenset[int], place: str = "") -> Rank:
    """Return a rank of fsdp: shards of everything, and one gathered layer at a time."""
    own, layer = cells(ALL, columns), frozenset({1})
    others = cells(layer, ALL - columns)
    return Rank(own, own, own, others, others, cells(ALL, samples), place=place)


def two(rank: Callable[[int], Rank]) -> tuple[Rank, ...]:
    """Return two ranks."""
    return rank(0), rank(1)


def four(outer: str, inner: str, rank: Callable[[int, int, str], Rank]) -> tuple[Rank, ...]:
    """Return four ranks of a mesh with two dimensions."""
    positions = [(i, j) for i in range(2) for j in range(2)]
    return tuple(rank(i, j, f"{outer} {i}, {inner} {j}") for i, j in positions)


def _pipeline(i: int, j: int, place: str) -> Rank:
    stage, shard = part(i, 2), part(j, 2)
    own, others = cells(stage, shard), cells(stage, ALL - shard)
    return Rank(own, own, own, others, others, cells(stage, shard), place=place)


def _stages(states_only: bool, host: bool) -> Callable[[int], Rank]:
    def rank(i: int) -> Rank:
        own = cells(ALL, part(i, 2))
        gradients, reduced = (cells(), cells()) if states_only else (own, cells() - own)
        return Rank(
            gradients=gradients, reduced=reduced, states=own,
            activations=cells(ALL, part(i, 2)), host=host,
        )  # fmt: skip

    return rank


def _zero2(i: int) -> Rank:
    own = cells(ALL, part(i, 2))
    layer = cells(frozenset({1}), ALL - part(i, 2))
    return Rank(own, own, own, cells() - own, layer, cells(ALL, part(i, 2)))


def _tensor(i: int, j: int, place: str) -> Rank:
    columns = frozenset({2 * j + i})
    own = cells(ALL, columns)
    others = cells(frozenset({1}), part(j, 2) - columns)
    return Rank(own, own, own, others, others, cells(ALL, part(i, 2)), (j, 2), place)


def _grid(stage: int, column: int, place: str) -> Rank:
    own = cells(part(stage, 2), part(column, 2))
    return Rank(own, own, own, activations=cells(part(stage, 2)), share=(column, 2), place=place)


def _layers(i: int) -> Rank:
    own = cells(part(i, 2))
    return Rank(own, own, own, activations=own)


def _columns(i: int) -> Rank:
    own = cells(ALL, part(i, 2))
    return Rank(own, own, own, activations=cells(), share=(i, 2))


WORDS = {
    "ddp": (
        "Two ranks. Each has all parameters, gradients and optimizer states, and the "
        "activations of its half of the samples."
    ),
    "zero1": (
        "Two ranks. Each has all parameters and gradients, half of the optimizer states, "
        "and half of the samples."
    ),
    "zero2": (
        "Two ranks. Each stores half of parameters, gradients and optimizer states, has "
        "all parameters for a moment, and half of the samples."
    ),
    "fsdp": (
        "Two ranks. Each stores half of the parameters, gradients and optimizer states of "
        "every layer, has one whole layer for a moment, and half of the samples."
    ),
    "hsdp": (
        "Four ranks in two groups. In a group, each rank stores half of everything; the "
        "second group stores the same. Each rank has a quarter of the samples."
    ),
    "deepspeed_stage_1": (
        "Two ranks. As zero1: each has all parameters and gradients, half of the "
        "optimizer states, and half of the samples."
    ),
    "deepspeed_stage_2": (
        "Two ranks. Each has all parameters, half of the gradients and of the optimizer "
        "states, and half of the samples."
    ),
    "deepspeed_stage_2_offload": (
        "Two ranks. As deepspeed_stage_2, with the optimizer states outlined: they are in "
        "the memory of the host."
    ),
    "deepspeed_stage_3": (
        "Two ranks. As fsdp: each stores half of everything of every layer, and has one "
        "whole layer for a moment."
    ),
    "tp": (
        "Two ranks. Each has half of every layer's parameters, gradients and optimizer "
        "states, all samples, and half of each activation inside of layers."
    ),
    "pp": (
        "Two ranks. The first has the first two layers, the second the last two: their "
        "parameters, gradients, optimizer states, and activations of all samples."
    ),
    "sp": (
        "Two ranks. Each has all parameters, gradients and optimizer states, all samples, "
        "and half of each activation: a slice of the sequence."
    ),
    "fsdp+tp": (
        "Four ranks. Each stores a quarter of every layer: half of the half that its "
        "tensor parallel rank computes with. Ranks with the same fsdp number have the "
        "same samples."
    ),
    "tp+pp": "Four ranks. Each has half of every layer of its stage, and all samples.",
    "fsdp+pp": (
        "Four ranks. Each stores half of every layer of its stage, has the whole stage "
        "for a moment, and half of the samples."
    ),
    "mp": (
        "One process with two GPUs. The first GPU has the first two layers, the second "
        "the last two, each with all samples. One computes at a time."
    ),
    "dp": (
        "One process with two GPUs. The first has all parameters, gradients and optimizer "
        "states; the second has copies of parameters and gradients for a moment. Each has "
        "half of the samples."
    ),
    "none": "Two ranks. What they hold is what the cell creates.",
}
"""Each picture in words, for those who do not see it."""

RANKS = {
    "ddp": two(lambda i: Rank(activations=cells(ALL, part(i, 2)))),
    "zero1": two(_stages(states_only=True, host=False)),
    "zero2": two(_zero2),
    "fsdp": two(lambda i: sharded(part(i, 2), part(i, 2))),
    "hsdp": four(
        "dp", "fsdp", lambda i, j, place: sharded(part(j, 2), frozenset({2 * i + j}), place)
    ),
    "deepspeed_stage_1": two(_stages(states_only=True, host=False)),
    "deepspeed_stage_2": two(_stages(states_only=False, host=False)),
    "deepspeed_stage_2_offload": two(_stages(states_only=False, host=True)),
    "deepspeed_stage_3": two(lambda i: sharded(part(i, 2), part(i, 2))),
    "tp": two(_columns),
    "pp": two(_layers),
    "sp": two(lambda i: Rank(share=(i, 2))),
    "fsdp+tp": four("fsdp", "tp", _tensor),
    "tp+pp": four("pp", "tp", _grid),
    "fsdp+pp": four("pp", "fsdp", _pipeline),
    "mp": two(_layers),
    "dp": (
        Rank(activations=cells(ALL, part(0, 2))),
        Rank(*3 * (frozenset(),), cells(), cells(), cells(ALL, part(1, 2))),
    ),
    "none": 2 * (Rank(*3 * (frozenset(),), activations=frozenset()),),
}

IN_ONE_PROCESS = ("mp", "dp")

PICTURES = tuple(
    Picture(name, WORDS[name], ranks, "GPU" if name in IN_ONE_PROCESS else "rank")
    for name, ranks in RANKS.items()
)
