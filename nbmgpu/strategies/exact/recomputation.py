"""Checkpoints in a call on this rank's samples, which compute again after the call has ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.forward_patch import ForwardWrapper
from nbmgpu.strategies.sequence.region import Region

from .region import BatchRegion


class WrapOrder:
    """The order in which models were wrapped.

    What a checkpoint computes again runs as at first, without the models that were wrapped since.
    """

    def __init__(self) -> None:
        """Start before the first model."""
        self._count = 0
        self._as_of: float = math.inf

    def begin(self) -> None:
        """Begin to wrap the next model."""
        self._count += 1

    def unless_later(self, forward: ForwardWrapper) -> ForwardWrapper:
        """Return a wrapper that does nothing in what was checkpointed before this model."""
        number = self._count

        def wrapper(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if number > self._as_of:
                return call(*args, **kwargs)
            return forward(call, args, kwargs)

        return wrapper

    def as_of_now(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function in which only models are split that are wrapped now."""
        number = self._count

        def as_of_then(*args: Any, **kwargs: Any) -> Any:
            before, self._as_of = self._as_of, number
            try:
                return function(*args, **kwargs)
            finally:
                self._as_of = before

        return as_of_then


def patch_checkpoint(
    patches: PatchStack, as_now: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Let what a checkpoint computes again act on the region in which it was computed.

    Where it was computed outside of one, ``as_now`` returns a function that computes as it does at
    the time of its call.
    """

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            region = Region.current
            if not isinstance(region, BatchRegion):
                return plain(as_now(function), *args, **kwargs)
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
