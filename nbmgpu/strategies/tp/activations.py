"""How activations get into a split layer and out of it: whole, or on slices of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import ProcessGroup

from nbmgpu.strategies.checkpoint import is_checkpointed
from nbmgpu.strategies.sequence.region import NotSplittableError, Region
from nbmgpu.strategies.sharding.collectives import (
    gather_input,
    gather_parts,
    replicate_input,
    reshard_parts,
    scatter_partials,
    split_parts,
    sum_partials,
)
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout


class Activations(Protocol):
    """The activations between split layers."""

    def for_outputs(self, input: Tensor) -> tuple[Tensor, AbstractContextManager[Any]]:
        """Return the input of a layer that is split by outputs, and a context for its call."""

    def for_inputs(self, input: Tensor) -> Tensor:
        """Return this rank's features of the input of a layer that is split by inputs."""

    def gather(self, output: Tensor, dim: int, size: int) -> Tensor:
        """Return an output that has a part of the ``size`` features along ``dim``."""

    def sum(self, output: Tensor) -> Tensor:
        """Return the sum of the ranks' outputs."""


class WholeActivations:
    """Activations that each rank has for all positions; see ``Activations``."""

    def __init__(self, group: ProcessGroup) -> None:
        """Hold the ranks of split layers."""
        self.group = group

    def for_outputs(self, input: Tensor) -> tuple[Tensor, AbstractContextManager[Any]]:
        """Keep the input."""
        return replicate_input(input, self.group), nullcontext()

    def for_inputs(self, input: Tensor) -> Tensor:
        """Take a part of the features."""
        return split_parts(input, ShardLayout(input.shape, input.dim() - 1, self.group))

    def gather(self, output: Tensor, dim: int, size: int) -> Tensor:
        """Gather the features."""
        return gather_parts(output, _layout(output, dim, size, self.group))

    def sum(self, output: Tensor) -> Tensor:
        """Run an all-reduce."""
        return sum_partials(output, self.group)


class SlicedActivations:
    """Activations of which each rank has a slice of the sequence; see ``Activations``.

    Inside of a split layer, there are all positions, of some features.
    """

    def __init__(self, region: Region) -> None:
        """Hold the region that runs."""
        self.region = region

    def for_outputs(self, input: Tensor) -> tuple[Tensor, AbstractContextManager[Any]]:
        """Gather the positions, unless their block has."""
        known: GatheredInput | None = self.region.gathered
        if known is None or not known.is_of(input):
            if self.region.has_positions(input, self.region.length):
                return input, nullcontext()
            known = self.region.gathered = GatheredInput(self.region, input)
        return known.for_layer()

    def for_inputs(self, input: Tensor) -> Tensor:
        """Run an all-to-all: all positions, of some features."""
        part = self.region.with_positions(input, self.region.size)
        layout = self.region.layout_of_slice(part, self.region.dim)
        split = reshard_parts(part, layout, part.dim() - 1)
        return split.flatten(0, 1) if input.dim() == 2 else split

    def gather(self, output: Tensor, dim: int, size: int) -> Tensor:
        """Run an all-to-all: all features, of some positions."""
        if dim % output.dim() != output.dim() - 1:
            raise NotSplittableError("a convolution in it is split")
        whole = self.region.with_positions(output, self.region.length)
        layout = _layout(whole, -1, size, self.region.group)
        part = reshard_parts(whole, layout, self.region.dim)
        return part.flatten(0, 1) if output.dim() == 2 else part

    def sum(self, output: Tensor) -> Tensor:
        """Run a reduce-scatter."""
        whole = self.region.with_positions(output, self.region.length)
        part = scatter_partials(whole, self.region.layout(whole.shape, self.region.dim))
        return part.flatten(0, 1) if output.dim() == 2 else part


def _layout(part: Tensor, dim: int, size: int, group: ProcessGroup) -> ShardLayout:
    shape, dim = list(part.shape), dim % part.dim()
    shape[dim] = size
    return ShardLayout(torch.Size(shape), dim, group)


class GatheredInput:
    """The input of split layers for all positions, of which autograd keeps a slice.

    Attributes:
        part: this rank's slice.
        whole: all positions.
    """

    def __init__(self, region: Region, part: Tensor) -> None:
        """Run an all-gather; in the backward pass, a reduce-scatter.

        Raises:
            NotSplittableError: the input is no slice.
        """
        positions = region.with_positions(part, region.size)
        layout = region.layout_of_slice(positions, region.dim)
        whole = gather_input(positions, layout)
        self.part = part
        self.whole = whole.flatten(0, 1) if part.dim() == 2 else whole
        self._positions = positions.detach()
        self._layout = layout
        self._for_layers: tuple[Tensor, KeptSlice] | None = None
        self._versions = self._current_versions()

    def _current_versions(self) -> list[int]:
        return [x._version for x in (self.part, self.whole) if not x.is_inference()]

    def is_of(self, input: Tensor) -> bool:
        """Whether ``input`` is the slice or the whole, and neither was changed in place."""
        is_same = input is self.part or input is self.whole
        return is_same and self._versions == self._current_versions()

    def for_layer(self) -> tuple[Tensor, AbstractContextManager[Any]]:
        """Return the input of a layer, and a context for its call."""
        if self._for_layers is None:
            whole, part = self.whole, self._positions
            if torch.is_autocast_enabled(whole.device.type):  # a layer would save a copy of its own
                dtype = torch.get_autocast_dtype(whole.device.type)
                whole, part = whole.to(dtype), part.to(dtype)
            self._for_layers = whole, KeptSlice(part, self._layout, whole)
        whole, kept = self._for_layers
        # What a checkpoint keeps, it decides.
        return whole, nullcontext() if is_checkpointed() else kept.saved()


def gathered_arguments(region: Region, leaves: list[Any]) -> list[Any]:
    """Return the arguments of a block with all positions: gradients add up."""
    region.gathered = None
    gathered: list[Any] = []
    for leaf in leaves:
        if not region.is_slice(leaf):
            gathered.append(leaf)
        elif region.gathered is None and region.has_positions(leaf, region.size):
            region.gathered = GatheredInput(region, leaf)
            gathered.append(region.gathered.whole)
        else:
            gathered.append(gather_input(leaf, region.layout_of_slice(leaf, region.dim)))
    return gathered


def whole_arguments(region: Region, leaves: list[Any]) -> list[Any]:
    """Return the arguments of a block with all positions, without their graph."""
    with torch.no_grad():
        return [region.gather(x, region.dim) if region.is_slice(x) else x for x in leaves]


class KeptSlice:
    """What autograd keeps of an input that was gathered: this rank's slice (2205.05198, 4.2.2).

    The backward pass gathers it again, once for all layers with this input.
    """

    def __init__(self, part: Tensor, layout: ShardLayout, whole: Tensor) -> None:
        """Keep the slice.

        Args:
            part: the slice, without its graph.
            layout: how the input is split.
            whole: all positions; not kept.
        """
        self._part = part
        self._layout = layout
        self._address = whole.untyped_storage().data_ptr()
        self._saved = 0
        self._used = 0
        self._whole: Tensor | None = None

    def saved(self) -> AbstractContextManager[Any]:
        """Let layers in the body save the slice for the gathered input."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor | Callable[[Tensor], Tensor]:
        if tensor.untyped_storage().data_ptr() != self._address:
            # What is saved as it is may keep the graph alive that it is part of.
            return tensor.detach()
        self._saved += 1
        shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        return lambda whole: whole.as_strided(shape, strides, offset)

    def _unpack(self, saved: Tensor | Callable[[Tensor], Tensor]) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if self._whole is None:
            part = self._part
            self._whole, self._used = self._layout.gather(part, part.device), 0
        self._used += 1
        view = saved(self._whole)
        if self._used >= self._saved:
            self._whole = None
        return view
