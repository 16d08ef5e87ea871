"""Finds the batch that the model currently trains on, for loops that prefetch by themselves.

Such a loop requests the next batch before it trains on the current one.  The state of a batch
(its shard, whether it is the last) must not take effect before the batch is used.  A batch that
arrives while another one is still unused is therefore queued.  While batches are queued, the
inputs of the model identify the current one: by their memory, or else by their number of rows.
Where the queued batches do not differ in their state, it does not matter which one is chosen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .batch_tensors import iter_tensors

if TYPE_CHECKING:
    from .loader_events import LoaderEvent

MAX_QUEUED = 64
"""Events that may be queued.  A loop that reads further ahead does not train on the batches."""


class CurrentBatch:
    """Queues the events of loaders until the batch they belong to is trained on.

    Attributes:
        has_queued: whether events have ever been queued.
    """

    def __init__(self, on_queued: Callable[[], None], on_ambiguous: Callable[[], None]) -> None:
        """Create a tracker without a current batch.

        Args:
            on_queued: called when events begin to be queued; from then on ``match_inputs`` must be
                called with the inputs of every forward pass.
            on_ambiguous: called when the inputs do not identify one of several different batches.
        """
        self.has_queued = False
        self._on_queued = on_queued
        self._on_ambiguous = on_ambiguous
        self._current: LoaderEvent | None = None
        self._used = True  # whether a backward pass on it has begun
        self._matched = False  # whether a module has received it since
        self._queue: deque[LoaderEvent] = deque()

    def submit(self, event: LoaderEvent) -> None:
        """Apply ``event``, or queue it while a batch of the same loader is still unused."""
        current = self._current
        must_wait = bool(self._queue) or not self._used
        if not must_wait or current is None or event.source is not current.source:
            self._apply(event)
            return
        if not self._queue:
            self.has_queued = True
            self._on_queued()
        self._queue.append(event)
        while len(self._queue) > MAX_QUEUED:
            self._apply(self._queue.popleft())

    def begin_backward(self) -> None:
        """Mark the current batch as used: a backward pass begins."""
        if not self._matched and self._queue:  # no module was called
            batches = self._batches()
            self._check_ambiguity(batches, batches[-1])
            self._apply_until(batches[-1] if len(batches) > 1 else self._queue[-1])
        self._used, self._matched = True, False

    @property
    def num_queued(self) -> int:
        """The number of batches that are queued."""
        return sum(event.begins_step for event in self._queue)

    def skip(self) -> None:
        """Mark all batches as used, as the loop does nothing with them."""
        self.flush()
        self._used, self._matched = True, False

    def match_inputs(self, inputs: list[Any]) -> None:
        """Make the batch current to which the ``inputs`` of a forward pass belong."""
        if not self._queue or self._current is None:
            return
        self._matched = True
        tensors, batches = list(iter_tensors(inputs)), self._batches()
        by_memory = [batch for batch in batches if batch.shares_memory_with(tensors)]
        candidates = by_memory or [batch for batch in batches if batch.has_rows_of(tensors)]
        if not candidates and len(batches) == 1:  # the last batch has ended; this is other data
            self._apply_until(self._queue[-1])
            return
        chosen = by_memory[0] if len(by_memory) == 1 else self._next_in_order(candidates or batches)
        self._check_ambiguity(candidates or batches, chosen)
        self._apply_until(chosen)

    def _batches(self) -> list[LoaderEvent]:
        """Return the current batch and the queued ones."""
        assert self._current is not None
        return [self._current, *(event for event in self._queue if event.begins_step)]

    def _next_in_order(self, candidates: list[LoaderEvent]) -> LoaderEvent:
        """Return the first candidate that has not been used."""
        first_is_used = self._used and candidates[0] is self._current and len(candidates) > 1
        return candidates[1 if first_is_used else 0]

    def _check_ambiguity(self, candidates: list[LoaderEvent], chosen: LoaderEvent) -> None:
        """Call ``on_ambiguous`` if another candidate would lead to a different step."""
        if any(event.shard != chosen.shard or event.last != chosen.last for event in candidates):
            self._on_ambiguous()

    def _apply_until(self, target: LoaderEvent) -> None:
        """Apply queued events up to and including ``target``."""
        while self._current is not target and self._queue:
            event = self._queue.popleft()
            self._apply(event)
            if event is target:
                return

    def flush(self) -> None:
        """Apply all queued events: the cell has finished."""
        while self._queue:
            self._apply(self._queue.popleft())

    def _apply(self, event: LoaderEvent) -> None:
        if event.begins_step:
            self._current, self._used = event, False
        event.apply()
