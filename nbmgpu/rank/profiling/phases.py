"""Names of what nbmgpu does in a step, as traces show them.

Methods are wrapped for one profiled run, and restored in the end: a run that is not profiled calls
them as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from torch.profiler import record_function

from nbmgpu.strategies import collectives

if TYPE_CHECKING:
    from nbmgpu.rank.data.loader_patch import LoaderPatch
    from nbmgpu.rank.training.backward import BackwardPatch
    from nbmgpu.strategies.base import Strategy

NEXT_BATCH = "nbmgpu: next batch"
BACKWARD = "nbmgpu: backward"
REDUCE = "nbmgpu: reduce gradients"
ALL_REDUCE = "nbmgpu: all-reduce"
ALL_GATHER = "nbmgpu: all-gather"
REDUCE_SCATTER = "nbmgpu: reduce-scatter"
CLIP = "nbmgpu: clip gradients"
STEP = "nbmgpu: step"

COLLECTIVES = {
    "all_reduce": ALL_REDUCE, "all_gather": ALL_GATHER, "reduce_scatter": REDUCE_SCATTER,
}  # fmt: skip
"""Collectives through shared memory, by the method that runs them."""


class WrappedMethods:
    """Methods of single objects that are wrapped together, and restored together."""

    def __init__(self) -> None:
        """Begin with none."""
        self._wrapped: list[tuple[Any, str]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the method of ``owner``, and of no other object, by ``make(method)``."""
        setattr(owner, name, make(getattr(owner, name)))
        self._wrapped.append((owner, name))

    def remove(self) -> None:
        """Restore the methods of the classes."""
        while self._wrapped:
            owner, name = self._wrapped.pop()
            delattr(owner, name)


def name_phases(
    strategy: Strategy, loaders: LoaderPatch, backward: BackwardPatch, methods: WrappedMethods
) -> None:
    """Wrap ``methods`` that a step calls, so that traces show it by these names."""
    methods.wrap(loaders, "iterate", _named_batches)
    methods.wrap(backward, "run", functools.partial(_named, BACKWARD))
    methods.wrap(strategy, "end_backward", functools.partial(_named, REDUCE))
    methods.wrap(strategy, "clip_grad_norm", functools.partial(_named, CLIP))
    methods.wrap(strategy, "step", functools.partial(_named, STEP))
    if collectives.shared is not None:  # torch's profiler sees the other collectives by itself
        for method, phase in COLLECTIVES.items():
            methods.wrap(collectives.shared, method, functools.partial(_named, phase))


def _named(phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method`` with its calls named ``phase``."""

    @functools.wraps(method)
    def named(*args: Any, **kwargs: Any) -> Any:
        with record_function(phase):
            return method(*args, **kwargs)

    return named


def _named_batches(iterate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return what begins a pass over a loader, with the wait for each batch named."""

    @functools.wraps(iterate)
    def named(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with record_function(NEXT_BATCH):  # starts the workers of the loader
            batches = iterate(*args, **kwargs)
        return _each_named(batches)

    return named


def _each_named(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        while True:
            with record_function(NEXT_BATCH):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch
    finally:
        if isinstance(batches, Generator):
            batches.close()  # ends the pass now, and not when it is garbage collected
