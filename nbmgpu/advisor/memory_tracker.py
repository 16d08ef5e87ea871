"""Tracks the bytes of all tensors that a step allocates, live and at peak."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .running_region import RunningRegion

CAST = torch.ops.aten._to_copy.default


@dataclass
class LiveMemory:
    """Bytes of a rank that has parts of a model.

    Attributes:
        region: which fraction of a tensor the rank has.
        live: bytes allocated now, without gradients.
        casts: of these, bytes of copies of parameters in another dtype.
        gradients: bytes of gradients.
        peak: maximum of ``live``.
        peak_with_gradients: maximum of ``live`` and ``gradients`` together.
        uncast_peak: maximum of ``live - casts``.
    """

    region: RunningRegion
    live: float = 0
    casts: float = 0
    gradients: float = 0
    peak: float = 0
    peak_with_gradients: float = 0
    uncast_peak: float = 0

    def add(self, size: float, is_cast: bool) -> None:
        """Count an allocation, or a release where ``size`` is negative."""
        self.live += size
        self.casts += size * is_cast

    def update(self) -> None:
        """Update the peaks."""
        self.peak = max(self.peak, self.live)
        self.peak_with_gradients = max(self.peak_with_gradients, self.live + self.gradients)
        self.uncast_peak = max(self.uncast_peak, self.live - self.casts)


@dataclass
class TrackedStorage:
    """The memory of a tensor.

    Attributes:
        sizes: its bytes on the rank, for each ``LiveMemory``.
        is_cast: whether it is a copy of a parameter in another dtype.
        is_gradient: whether it has become the gradient of a parameter.
    """

    sizes: list[float]
    is_cast: bool = False
    is_gradient: bool = False


class TensorMemoryTracker(TorchDispatchMode):
    """Counts the bytes of each storage from its allocation until it is freed.

    Attributes:
        memories: the counts, one for each kind of rank.
    """

    def __init__(self, model: nn.Module, regions: Sequence[RunningRegion]) -> None:
        """Track allocations of a step of ``model``; its own tensors are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.memories = [LiveMemory(region) for region in regions]
        self._parameters = {p.untyped_storage()._cdata: p for p in model.parameters()}
        self._own = {
            tensor.untyped_storage()._cdata
            for tensor in (*model.parameters(), *model.buffers(), *attribute_tensors(model))
        }
        self._known: dict[int, TrackedStorage] = {}
        self._finalizers: list[Any] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._count_as_gradient)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its results."""
        result = func(*args, **(kwargs or {}))
        cast = None
        if func is CAST:
            cast = self._parameters.get(args[0].untyped_storage()._cdata)
        self.add(result, cast)
        return result

    def add(self, value: Any, cast: nn.Parameter | None = None) -> None:
        """Count the new tensors in ``value`` and update the peaks.

        Args:
            value: tensors.
            cast: the parameter of which they are copies in another dtype, if they are.
        """
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                self._add_storage(tensor, cast)
        for memory in self.memories:
            memory.update()

    def count_in_full(self, tensor: Tensor, region: RunningRegion) -> None:
        """Count a tensor that was counted in part, as all ranks gather it."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        if known is None or known.is_gradient:
            return
        for index, memory in enumerate(self.memories):
            if memory.region is region:
                more = tensor.untyped_storage().nbytes() - known.sizes[index]
                memory.add(more, known.is_cast)
                known.sizes[index] += more
                memory.update()

    def hold(self, size: float, region: RunningRegion) -> None:
        """Count ``size`` bytes until the end of the step."""
        for memory in self.memories:
            if memory.region is region:
                memory.add(size, False)
                memory.update()

    def _add_storage(self, tensor: Tensor, cast: nn.Parameter | None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or key in self._own:
            return
        size = storage.nbytes()
        regions = [memory.region for memory in self.memories]
        fractions = [r.fraction() if cast is None else r.parts.held.get(cast, 1.0) for r in regions]
        known = TrackedStorage([size * fraction for fraction in fractions], cast is not None)
        self._known[key] = known
        for memory, part in zip(self.memories, known.sizes, strict=True):
            memory.add(part, known.is_cast)
        self._finalizers.append(weakref.finalize(storage, self._remove_storage, key))
        self._finalizers[-1].atexit = False

    def _remove_storage(self, key: int) -> None:
        known = self._known.pop(key)
        for memory, part in zip(self.memories, known.sizes, strict=True):
            if known.is_gradient:
                memory.gradients -= part
            else:
                memory.add(-part, known.is_cast)

    def _count_as_gradient(self, parameter: nn.Parameter) -> None:
        """Move the accumulated gradient of ``parameter`` to the gradients."""
        if parameter.grad is None or parameter.grad.is_sparse:
            return
        storage = parameter.grad.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is None or known.is_gradient:
            return
        known.is_gradient = True
        for index, memory in enumerate(self.memories):
            memory.add(-known.sizes[index], known.is_cast)
            held = memory.region.parts.held.get(parameter, 1.0)
            known.sizes[index] = storage.nbytes() * held
            memory.gradients += known.sizes[index]


def attribute_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that modules hold as plain attributes."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                yield value
