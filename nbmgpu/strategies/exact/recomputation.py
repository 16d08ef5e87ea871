"""Checkpoints in a call on this rank's samples, which compute again after the call has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.forward_patch import ForwardWrapper
from nbmgpu.strategies.sequence.region import Region

from .region import BatchRegion


class CallContext:
    """What decides how a call is split: the models that are wrapped, and the modules around it.

    What a checkpoint computes again runs as at first: without the models that were wrapped since,
    and inside of the same modules.

    Attributes:
        depth: number of modules around the call that see the whole batch.
    """

    def __init__(self) -> None:
        """Start before the first model, outside of all modules."""
        self.depth = 0
        self._count = 0
        self._as_of: float = math.inf

    def begin(self) -> None:
        """Begin to wrap the next model."""
        self._count += 1

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let the body be in the forward pass of a module that sees the whole batch."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def unless_later(self, forward: ForwardWrapper) -> ForwardWrapper:
        """Return a wrapper that does nothing in what was checkpointed before this model."""
        number = self._count

        def wrapper(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if number > self._as_of:
                return call(*args, **kwargs)
            return forward(call, args, kwargs)

        return wrapper

    def as_of_now(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that computes later what it computes now, split in the same way."""
        now = self._count, self.depth

        def as_of_then(*args: Any, **kwargs: Any) -> Any:
            before = self._as_of, self.depth
            self._as_of, self.depth = now
            try:
                return function(*args, **kwargs)
            finally:
                self._as_of, self.depth = before

        return as_of_then


def patch_checkpoint(patches: PatchStack, context: CallContext) -> None:
    """Let what a checkpoint computes again act on the region in which it was computed.

    Where it was computed outside of one, it runs as it does now in ``context``.
    """

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            region = Region.current
            if not isinstance(region, BatchRegion):
                return plain(context.as_of_now(function), *args, **kwargs)
            draws = region.draws
            number = len(draws.places) if draws else 0

            def in_region(*args: Any, **kwargs: Any) -> Any:
                if Region.current is region:
                    return function(*args, **kwargs)
                with region.active(), draws.repeated(number) if draws else nullcontext():
                    return function(*args, **kwargs)

            return plain(in_region, *args, **kwargs)

        return checkpoint

    patches.wrap("torch.utils.checkpoint._checkpoint_without_reentrant_generator", wrap)
