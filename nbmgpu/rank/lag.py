"""Loops of a cell that read batches ahead by themselves: which batch is the model given now?

Such a loop, a prefetcher for example, asks for the next batch before it trains on the one
it has.  What belongs to a batch (its share, whether it is the last) must not take effect
before the batch is used.  So a batch that arrives while another one is still unused waits,
and as long as some wait, the inputs of the model tell which batch is under way: by their
memory, else by their number of rows.  Where batches do not differ in what belongs to
them, it does not matter which of them it is.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .ahead import Event

MOST = 64
"""Batches that may wait.  A loop that reads more has no use for them."""


class Lag:
    """What loaders have said and what of it is in effect."""

    def __init__(self, on_wait: Callable[[], None], on_doubt: Callable[[], None]) -> None:
        """Begin with nothing read.

        Args:
            on_wait: called when batches begin to wait; from then on ``meet`` is to be called.
            on_doubt: called when nothing tells which of two different batches is used.
        """
        self._on_wait = on_wait
        self._on_doubt = on_doubt
        self._current: Event | None = None
        self._used = True
        self._met = False
        self._waiting: deque[Event] = deque()

    def arrive(self, event: Event) -> None:
        """Let ``event`` take effect, unless a batch of its loader is still to be used."""
        current = self._current
        waits = bool(self._waiting) or not self._used
        if not waits or current is None or event.source is not current.source:
            self._do(event)
            return
        if not self._waiting:
            self._on_wait()
        self._waiting.append(event)
        while len(self._waiting) > MOST:
            self._do(self._waiting.popleft())

    def use(self) -> None:
        """Know that a backward pass begins, on the batch that was met."""
        if not self._met and self._waiting:  # no module: the newest, as if none were ahead
            newest = [event for event in self._waiting if event.begins]
            if any(event.share != newest[-1].share for event in newest):
                self._on_doubt()
            if newest:
                self._catch_up(newest[-1])
        self._used, self._met = True, False

    def meet(self, inputs: list[Any]) -> None:
        """Let the batch take effect to which ``inputs`` of a forward pass belong."""
        if not self._waiting or self._current is None:
            return
        self._met = True
        here = list(tensors_in(inputs))
        batches = [self._current, *(event for event in self._waiting if event.begins)]
        found = [b for b in batches if b.holds(here)] or [b for b in batches if b.has_rows(here)]
        if found:
            self._catch_up(found[-1] if found[-1].holds(here) else self._choose(found))
        elif len(batches) == 1:  # the last batch is over, and this is something else
            self._catch_up(self._waiting[-1])

    def _choose(self, found: list[Event]) -> Event:
        """Choose among batches with as many rows as the inputs."""
        done_with_first = self._used and found[0] is self._current and len(found) > 1
        in_turn = found[1 if done_with_first else 0]
        if any(event.share != in_turn.share or event.last != in_turn.last for event in found):
            self._on_doubt()
        return in_turn

    def _catch_up(self, until: Event) -> None:
        while self._current is not until and self._waiting:
            event = self._waiting.popleft()
            self._do(event)
            if event is until:
                return

    def settle(self) -> None:
        """Let everything take effect that still waits, for the cell is over."""
        while self._waiting:
            self._do(self._waiting.popleft())

    def _do(self, event: Event) -> None:
        if event.begins:
            self._current, self._used = event, False
        event.do()


Weak = tuple[weakref.ref[torch.Tensor], ...]


def weakly(batch: Any) -> Weak:
    """Return the tensors of a batch, without keeping them."""
    return tuple(weakref.ref(tensor) for tensor in tensors_in(batch))


def tensors_in(item: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors of a collated batch, or of the arguments of a call."""
    if isinstance(item, torch.Tensor):
        yield item
    elif depth and isinstance(item, dict | list | tuple):
        parts = item.values() if isinstance(item, dict) else item
        for part in islice(parts, 64):
            yield from tensors_in(part, depth - 1)


def memory_of(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return where the tensors' storages lie; views share it."""
    return {t.untyped_storage().data_ptr() for t in tensors if t.layout is torch.strided}
