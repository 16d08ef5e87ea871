"""Loops that read batches ahead: what belongs to a batch takes effect when the batch is used.

A split loader tells the session which share of the global batch comes next.  Some loops
take batches from it before they train on earlier ones: accelerate's loaders look one batch
ahead for the end, and a Trainer gathers all batches of an accumulated step.  Such a reader
keeps what the loader had to say in a queue, and plays it as it hands its batches out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Share


@dataclass(frozen=True, eq=False)
class Event:
    """Something that a loader wants done.

    ``begins`` tells that it begins the step of a batch, of which ``share`` is the rank's
    share; None for a batch that is not split.
    """

    do: Callable[[], None]
    begins: bool
    share: Share | None = None


Queue = deque[Event]
"""What a reader has been told and has not yet played."""


class ReadAhead:
    """Does what loaders want done at once, unless somebody is reading ahead."""

    def __init__(self) -> None:
        """Nobody reads ahead."""
        self._readers: list[Queue] = []

    def play(self, event: Event) -> None:
        """Do ``event`` now, or keep it for the innermost reader's time."""
        if self._readers:
            self._readers[-1].append(event)
        else:
            event.do()

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
            event = queue.popleft()
            self.play(event)
            if event.begins:
                return

    def drop_next(self, queue: Queue) -> None:
        """Forget the next batch, which its reader has skipped."""
        first = next((event for event in queue if event.begins), None)
        if first is not None:
            queue.remove(first)

    def end(self, queue: Queue) -> None:
        """Play what is left, but for the steps of batches that nobody will use."""
        while queue:
            event = queue.popleft()
            if not event.begins:
                self.play(event)
