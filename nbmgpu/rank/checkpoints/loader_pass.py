"""A pass over a loader, and the random states that a resumed cell needs to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmgpu.rank.rng.streams import RandomStreams, StreamStates


@dataclass(eq=False)
class PassRecord:
    """What a checkpoint has of a pass over a loader.

    Attributes:
        iteration: of the loop that it began in, from 1; 0 for a pass that begins with the loop.
        begun: the random states before it.
        loaded: the random states before its last batch was loaded, if a checkpoint was near.
        batches: number of batches loaded.
        is_over: whether all have been.
        in_body: whether the body of the loop has begun it, by ``iter(loader)``.
    """

    iteration: int
    begun: StreamStates
    loaded: StreamStates | None = None
    batches: int = 0
    is_over: bool = False
    in_body: bool = False


class LoaderPass:
    """Yields the batches of a pass, and records the states before the one of a checkpoint."""

    def __init__(
        self,
        record: PassRecord,
        batches: Iterator[Any],
        streams: RandomStreams,
        is_near: Callable[[], bool],
    ) -> None:
        """Yield ``batches``; record states while a checkpoint ``is_near``: that takes 0.3 ms."""
        self._record = record
        self._batches = batches
        self._streams = streams
        self._is_near = is_near
        self._saved: PassRecord | None = None
        self._is_next: Callable[[], bool] = lambda: False

    def resume_from(self, saved: PassRecord, is_next: Callable[[], bool]) -> None:
        """Restore the states before the last batch of ``saved`` when that ``is_next``."""
        self._saved, self._is_next = saved, is_next

    def advance(self, saved: PassRecord) -> None:
        """Load batches until there are as many as in ``saved``, the last one with its states."""
        while self._record.batches < saved.batches:
            if self._record.batches == saved.batches - 1 and saved.loaded is not None:
                self._streams.restore(saved.loaded)
            next(self)

    def __iter__(self) -> LoaderPass:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        saved, record = self._saved, self._record
        if saved is not None and saved.loaded is not None and self._is_next():
            self._streams.restore(saved.loaded)
            self._saved = None
        record.loaded = self._streams.states() if self._is_near() else None
        try:
            batch = next(self._batches)
        except StopIteration:
            record.is_over = True
            raise
        record.batches += 1
        return batch
