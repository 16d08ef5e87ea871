"""What variables of the cell hold after a step: tensors with the samples along one dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nbmgpu.serialization.value_tree import leaves_of
from nbmgpu.strategies.outcome import versions_of

from .tags import Batched, Tag

TagOf = Callable[[Tensor], Tag | None]


@dataclass(frozen=True)
class SampleDim:
    """Where a tensor has its samples.

    Attributes:
        dim: the dimension, counted from the left.
        block_size: elements along it per sample.
    """

    dim: int
    block_size: int


@dataclass(frozen=True)
class StepValue:
    """What a variable held after an observed step.

    Attributes:
        dims: where the samples are in each leaf of the value; None for one without samples.
        versions: how often each tensor in it had been written to.
    """

    dims: tuple[SampleDim | None, ...]
    versions: list[int]

    @classmethod
    def observe(cls, value: Any, tag_of: TagOf) -> StepValue | None:
        """Return it for ``value``; None if no tensor in it has all samples in order."""
        if (leaves := leaves_of(value)) is None:
            return None
        dims = tuple(_sample_dim(leaf, tag_of) for leaf in leaves)
        return cls(dims, versions_of(leaves)) if any(dims) else None

    def has_samples(self, value: Any, samples: int) -> bool:
        """Return whether ``value`` has the same form, with this number of ``samples``."""
        leaves = leaves_of(value)
        if leaves is None or len(leaves) != len(self.dims) or versions_of(leaves) != self.versions:
            return False
        return all(
            at is None or _size(leaf, at.dim) == samples * at.block_size
            for leaf, at in zip(leaves, self.dims, strict=True)
        )


class StepValues:
    """Values of the variables that every step of a training loop binds.

    Attributes:
        variables: of the cell.
        of_names: the values after the last observed step, by the name of the variable.
        loader_of: the loader of the loop that binds a variable.
    """

    def __init__(self) -> None:
        """Observe no variables."""
        self.variables: MutableMapping[str, Any] = {}
        self.of_names: dict[str, StepValue] = {}
        self.loader_of: dict[str, object] = {}

    def begin_cell(self, variables: MutableMapping[str, Any]) -> None:
        """Observe the ``variables`` of a cell."""
        self.variables = variables
        self.of_names, self.loader_of = {}, {}

    def begin_pass(self, loader: object, names: Iterable[str]) -> None:
        """Begin a pass over ``loader`` for a loop each step of which binds ``names``."""
        self.loader_of |= dict.fromkeys(names, loader)

    def observe(self, tag_of: TagOf) -> None:
        """Replace the values by those after a step, with ``tag_of`` for the tags of tensors."""
        self.of_names = {
            name: found
            for name in self.loader_of
            if (found := StepValue.observe(self.variables.get(name), tag_of)) is not None
        }


def _sample_dim(leaf: Any, tag_of: TagOf) -> SampleDim | None:
    tag = tag_of(leaf) if type(leaf) is Tensor else None
    if not isinstance(tag, Batched) or not tag.has_all_in_order:
        return None
    dim = leaf.ndim + tag.dim
    is_whole = leaf.shape[dim] == len(tag.samples) * tag.block_size  # else samples are repeated
    return SampleDim(dim, tag.block_size) if is_whole else None


def _size(leaf: Any, dim: int) -> int | None:
    return leaf.shape[dim] if isinstance(leaf, Tensor) and leaf.ndim > dim else None
