"""One call of a module on this rank's samples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nbmgpu.strategies.sequence.region import NotSplittableError, Region

if TYPE_CHECKING:
    from .draws import DrawsOfBatch


@dataclass(frozen=True)
class SampleDim:
    """The dimension of a tensor along which its samples are.

    Attributes:
        dim: the dimension.
        per_sample: number of elements along it for each sample: 5 where (batch, 5, features) is
            flattened to (batch * 5, features).
    """

    dim: int
    per_sample: int = 1


@dataclass(eq=False)
class BatchRegion(Region):
    """One call of a module on this rank's samples.

    Attributes:
        before_collective: called before each collective in the call; in a trial, it raises
            NotSplittableError if another rank has failed.
        draws: draws for the whole batch; None where the module draws no random numbers.
    """

    before_collective: Callable[[], None] = lambda: None
    draws: DrawsOfBatch | None = None

    def find(self, part: torch.Size, whole: torch.Size) -> SampleDim | None:
        """Return the dimension of samples of a tensor; None if it is the same for all samples.

        Args:
            part: its shape in a call with this rank's samples.
            whole: its shape in a call with all samples.

        Raises:
            NotSplittableError: the shapes differ otherwise.
        """
        if part == whole:
            return None
        differ = [d for d, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b]
        if len(part) == len(whole) and len(differ) == 1:
            found = SampleDim(differ[0], part[differ[0]] // self.size)
            if self.whole_shape(part, found) == whole:
                return found
        raise NotSplittableError(
            f"a tensor of shape {tuple(whole)} has shape {tuple(part)} for {self.size} of "
            f"{self.length} samples"
        )

    def fits(self, part: torch.Size, found: SampleDim | None) -> bool:
        """Whether a tensor of shape ``part`` may have its samples along ``found``."""
        if found is None:
            return True
        return len(part) > found.dim and part[found.dim] == self.size * found.per_sample

    def whole_shape(self, part: torch.Size, found: SampleDim | None) -> torch.Size:
        """Return the shape for all samples of a tensor of shape ``part``.

        Raises:
            NotSplittableError: it has another number of samples than the slice.
        """
        if found is None:
            return part
        if not self.fits(part, found):
            raise NotSplittableError(f"a tensor has shape {tuple(part)}, unlike in its trial")
        sizes = list(part)
        sizes[found.dim] = self.length * found.per_sample
        return torch.Size(sizes)

    def part(self, whole: Tensor, found: SampleDim | None) -> Tensor:
        """Return this rank's samples of a tensor, a view."""
        if found is None:
            return whole
        each = found.per_sample
        return whole.narrow(found.dim, self.start * each, self.size * each)

    def gather_samples(self, part: Tensor, found: SampleDim | None) -> Tensor:
        """Return the tensor of all samples, for computations that are the same on all ranks."""
        if found is None:
            return part
        if found.per_sample == 1:
            return self.gather(part, found.dim)
        samples = part.unflatten(found.dim, (self.size, found.per_sample))
        return self.gather(samples, found.dim).flatten(found.dim, found.dim + 1)
