"""Loops that read batches ahead: what belongs to a batch takes effect when the batch is used.

A split loader tells the session which share of the global batch comes next.  Some loops
take batches from it before they train on earlier ones: accelerate's loaders look one batch
ahead for the end, and a Trainer gathers all batches of an accumulated step.  Such a reader
keeps what the loader had to say in a queue, and plays it as it hands its batches out.
Loops of the cell itself that do so are nobody's to tap: see ``nbmgpu.rank.data.current_batch``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .current_batch import BatchInUse, Weak, overlap

if TYPE_CHECKING:
    from .batch_shard import Share


@dataclass(frozen=True, eq=False)
class LoaderAction:
    """Something that a loader wants done.

    ``begins`` tells that it begins the step of a batch: that of ``source`` which has the
    tensors ``batch``, of which ``share`` is the rank's share, perhaps the ``last`` one.
    """

    do: Callable[[], None]
    begins: bool
    source: object = None
    batch: Weak = ()
    share: Share | None = None
    last: bool = False

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Tell whether one of ``tensors`` lies in the memory of the batch."""
        mine = [tensor for ref in self.batch if (tensor := ref()) is not None]
        return overlap(mine, tensors)

    def has_rows(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Tell whether one of ``tensors`` has as many rows as the rank's share of the batch."""
        samples = self.share.samples if self.share else 0
        return any(tensor.ndim and len(tensor) == samples for tensor in tensors)


Queue = deque[LoaderAction]
"""What a reader has been told and has not yet played."""


class ReadAhead:
    """Does what loaders want done in the order of use, whoever is reading ahead."""

    def __init__(self, in_use: BatchInUse) -> None:
        """Nobody reads ahead; ``batch_in_use`` looks after loops that do so by themselves."""
        self.in_use = in_use
        self._readers: list[Queue] = []

    @property
    def reading(self) -> bool:
        """Whether a known reader takes batches before they are used."""
        return bool(self._readers)

    def play(self, action: LoaderAction) -> None:
        """Do ``action`` when its batch is used, or keep it for the innermost reader's time."""
        if self._readers:
            self._readers[-1].append(action)
        else:
            self.in_use.arrive(action)

    @contextmanager
    def into(self, queue: Queue) -> Iterator[None]:
        """Keep in ``queue`` what loaders want done meanwhile."""
        self._readers.append(queue)
        try:
            yield
        finally:
            self._readers.pop()

    def begin_next(self, queue: Queue) -> None:
        """Play ``queue`` until the next batch's step has begun; all of it if none does."""
        while queue:
            action = queue.popleft()
            self.play(action)
            if action.begins:
                return

    def drop_next(self, queue: Queue) -> None:
        """Forget the next batch, which its reader has skipped."""
        first = next((action for action in queue if action.begins), None)
        if first is not None:
            queue.remove(first)

    def end(self, queue: Queue) -> None:
        """Play what is left, but for the steps of batches that nobody will use."""
        while queue:
            action = queue.popleft()
            if not action.begins:
                self.play(action)
