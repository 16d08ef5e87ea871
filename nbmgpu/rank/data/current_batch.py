"""Loops of a cell that read batches ahead by themselves: which batch is the model given now?

Such a loop, a prefetcher for example, asks for the next batch before it trains on the one
it has.  What belongs to a batch (its share, whether it is the last) must not take effect
before the batch is used.  So a batch that arrives while another one is still unused waits,
and as long as some wait, the inputs of the model tell which batch is under way: by their
memory, else by their number of rows.  Where batches do not differ in what belongs to
them, it does not matter which of them it is.
"""

from __future__ import annotations

import types
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .read_ahead import LoaderAction

MOST = 64
"""Batches that may wait.  A loop that reads more has no use for them."""


class BatchInUse:
    """Which batch is trained on, and what loaders want done that waits for the next one's turn."""

    def __init__(self, on_wait: Callable[[], None], on_doubt: Callable[[], None]) -> None:
        """Begin with nothing read.

        Args:
            on_wait: called when batches begin to wait; from then on ``meet`` is to be called.
            on_doubt: called when nothing tells which of two different batches is used.
        """
        self._on_wait = on_wait
        self._on_doubt = on_doubt
        self._current: LoaderAction | None = None
        self._used = True  # whether a backward pass has begun on it
        self._met = False  # whether a module has been given it since
        self._waiting: deque[LoaderAction] = deque()

    def arrive(self, action: LoaderAction) -> None:
        """Let ``action`` take effect, unless a batch of its loader is still to be used."""
        current = self._current
        waits = bool(self._waiting) or not self._used
        if not waits or current is None or action.source is not current.source:
            self._do(action)
            return
        if not self._waiting:
            self._on_wait()
        self._waiting.append(action)
        while len(self._waiting) > MOST:
            self._do(self._waiting.popleft())

    def use(self) -> None:
        """Know that a backward pass begins, on the batch that was met."""
        if not self._met and self._waiting:  # no module was called
            batches = self._batches()
            self._doubt(batches, batches[-1])
            self._catch_up(batches[-1] if len(batches) > 1 else self._waiting[-1])
        self._used, self._met = True, False

    def meet(self, inputs: list[Any]) -> None:
        """Let the batch take effect to which ``inputs`` of a forward pass belong."""
        if not self._waiting or self._current is None:
            return
        self._met = True
        here, batches = list(tensors_in(inputs)), self._batches()
        held = [batch for batch in batches if batch.holds(here)]
        alike = held or [batch for batch in batches if batch.has_rows(here)]
        if not alike and len(batches) == 1:  # the last batch is over, and this is something else
            self._catch_up(self._waiting[-1])
            return
        chosen = held[0] if len(held) == 1 else self._in_turn(alike or batches)
        self._doubt(alike or batches, chosen)
        self._catch_up(chosen)

    def _batches(self) -> list[LoaderAction]:
        """Return the batch under way and those that wait."""
        assert self._current is not None
        return [self._current, *(action for action in self._waiting if action.begins)]

    def _in_turn(self, found: list[LoaderAction]) -> LoaderAction:
        """Choose the batch whose turn it is."""
        done_with_first = self._used and found[0] is self._current and len(found) > 1
        return found[1 if done_with_first else 0]

    def _doubt(self, found: list[LoaderAction], chosen: LoaderAction) -> None:
        """Say so where another of the batches would have made another step."""
        if any(action.share != chosen.share or action.last != chosen.last for action in found):
            self._on_doubt()

    def _catch_up(self, until: LoaderAction) -> None:
        while self._current is not until and self._waiting:
            action = self._waiting.popleft()
            self._do(action)
            if action is until:
                return

    def settle(self) -> None:
        """Let everything take effect that still waits, for the cell is over."""
        while self._waiting:
            self._do(self._waiting.popleft())

    def _do(self, action: LoaderAction) -> None:
        if action.begins:
            self._current, self._used = action, False
        action.do()


Weak = tuple[weakref.ref[torch.Tensor], ...]


def weakly(batch: Any) -> Weak:
    """Return the tensors of a batch, without keeping them."""
    return tuple(weakref.ref(tensor) for tensor in tensors_in(batch))


def tensors_in(item: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors of a collated batch, or of the arguments of a call."""
    if isinstance(item, torch.Tensor):
        yield item
    elif depth and (parts := _parts(item)) is not None:
        for part in islice(parts, 64):
            yield from tensors_in(part, depth - 1)


def _parts(item: Any) -> Iterable[Any] | None:
    """Return what a batch is made of: a list, fields, or a mapping, as a tokenizer's batch is."""
    if isinstance(item, list | tuple):
        return item
    if isinstance(item, dict | UserDict):  # others may compute what they are asked for
        return item.values()
    if is_dataclass(item) and not isinstance(item, type):
        fields: dict[str, Any] = vars(item)
        return fields.values()
    if isinstance(held := getattr(item, "__dict__", None), dict) and _is_a_batch(item):
        return held.values()
    return None


def _is_a_batch(item: Any) -> bool:
    """Tell whether an object may be a batch of a class of its own, as those of graphs are."""
    others = type, types.ModuleType, types.FunctionType, torch.nn.Module
    return not isinstance(item, others)


def overlap(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Tell whether any two tensors share memory."""
    spans = [span for tensor in others if (span := _span(tensor))]
    return any(
        low < high_ and low_ < high
        for tensor in some
        if (span := _span(tensor))
        for (low, high), (low_, high_) in ((span, other) for other in spans)
    )


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the addresses between which a tensor's elements lie."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    low = tensor.data_ptr()
    return low, low + (reach + 1) * tensor.element_size()
