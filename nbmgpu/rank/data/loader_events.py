"""Events of sharded loaders, dispatched when their batch is used instead of when it is loaded.

A sharded loader announces which shard of the global batch comes next.  Some loops fetch batches
from it before they train on earlier ones: accelerate's loaders fetch one batch ahead to detect the
last one, and a Trainer fetches all batches of an accumulated step.  A patch of such a prefetcher
collects the loader's events in a queue and dispatches them as the prefetcher yields its batches.
Loops of the cell that prefetch by themselves cannot be patched; for those, see
``nbmgpu.rank.data.current_batch``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .batch_tensors import WeakTensors, share_memory
from .current_batch import CurrentBatch

if TYPE_CHECKING:
    from .batch_shard import BatchShard


@dataclass(frozen=True, eq=False)
class LoaderEvent:
    """A change of state that a loader requests.

    Attributes:
        apply: performs the change.
        begins_step: whether the event begins the step of a batch; the other fields describe it.
        source: the loader or iterator of the batch.
        tensors: the tensors of the batch.
        shard: the rank's shard of the batch.
        last: whether it is the last batch of a pass.
    """

    apply: Callable[[], None]
    begins_step: bool
    source: object = None
    tensors: WeakTensors = ()
    shard: BatchShard | None = None
    last: bool = False

    def shares_memory_with(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether one of ``tensors`` overlaps in memory with the batch."""
        alive = [tensor for ref in self.tensors if (tensor := ref()) is not None]
        return share_memory(alive, tensors)

    def has_rows_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether one of ``tensors`` has as many rows as the rank's shard of the batch."""
        samples = self.shard.samples if self.shard else 0
        return any(tensor.ndim and len(tensor) == samples for tensor in tensors)


EventQueue = deque[LoaderEvent]
"""Events that a prefetcher has collected and not yet dispatched."""


class LoaderEventDispatcher:
    """Dispatches loader events in the order in which their batches are used."""

    def __init__(self, current_batch: CurrentBatch) -> None:
        """Dispatch to ``current_batch``, which handles loops that prefetch by themselves."""
        self.current_batch = current_batch
        self._queues: list[EventQueue] = []

    @property
    def is_prefetching(self) -> bool:
        """Whether a patched prefetcher is fetching batches at the moment."""
        return bool(self._queues)

    @property
    def is_in_order(self) -> bool:
        """Whether batches have so far been used in the order in which they were loaded."""
        return not (self.is_prefetching or self.current_batch.has_queued)

    def dispatch(self, event: LoaderEvent) -> None:
        """Apply ``event`` when its batch is used, or add it to the innermost prefetcher's queue."""
        if self._queues:
            self._queues[-1].append(event)
        else:
            self.current_batch.submit(event)

    @contextmanager
    def collect(self, queue: EventQueue) -> Iterator[None]:
        """Collect in ``queue`` the events that loaders emit inside the context."""
        self._queues.append(queue)
        try:
            yield
        finally:
            self._queues.pop()

    def dispatch_next_batch(self, queue: EventQueue) -> None:
        """Dispatch events until the next batch's step has begun; all of them if none does."""
        while queue:
            event = queue.popleft()
            self.dispatch(event)
            if event.begins_step:
                return

    def discard_next_batch(self, queue: EventQueue) -> None:
        """Remove the next batch's event: the prefetcher has skipped the batch."""
        first = next((event for event in queue if event.begins_step), None)
        if first is not None:
            queue.remove(first)

    def finish(self, queue: EventQueue) -> None:
        """Dispatch what is left, except for steps of batches that will not be used."""
        while queue:
            event = queue.popleft()
            if not event.begins_step:
                self.dispatch(event)
