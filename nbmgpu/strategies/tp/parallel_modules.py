"""Forward passes of modules whose parameters are split over ranks.

A wrapper runs the module's own ``forward`` with this rank's parts in place of its parameters, with
collectives before and after.  So hooks of the user see the full inputs and outputs.  Inside of a
layer that runs on slices of the sequence, a module takes and returns slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.sample_tags import CopyTag
from nbmgpu.strategies.sequence.region import NotSplittableError, Region
from nbmgpu.strategies.sharding.chunks import chunk_size

from .activations import Activations, SlicedActivations, WholeActivations
from .plan import ModulePlan


class SplitParameter(Protocol):
    """The state of a parameter that is split over the ranks of a tensor-parallel group."""

    parameter: Any
    """The cell's parameter."""

    shape: torch.Size
    """Shape of the full parameter."""

    def part(self) -> Tensor | None:
        """Return this rank's part for the forward pass that runs now; None if it is not there."""


@dataclass(eq=False)
class ParallelModule:
    """A module that is split, with its parts.

    Attributes:
        plan: how it is split.
        states: its split parameters, by name.
        group: the ranks that hold the parts.
        copy_tag: is told that an output has the samples of its input.
        in_block: whether it is called by its ``ParallelBlock``, so that activations stay split.
    """

    plan: ModulePlan
    states: Mapping[str, SplitParameter]
    group: ProcessGroup
    copy_tag: CopyTag | None = None
    in_block: bool = False

    def is_ready(self) -> bool:
        """Whether the module has its own parameters, and their parts are there.

        ``functional_call`` passes it other parameters.  Otherwise it computes with full tensors.
        """
        own = self.plan.module._parameters
        return all(
            own.get(name) is state.parameter and state.part() is not None
            for name, state in self.states.items()
        )

    def forward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the forward pass; a ``ForwardWrapper``."""
        if not self.is_ready():
            return call(*args, **kwargs)
        output: Tensor
        match self.plan.style:
            case "outputs":
                output = self._split_by_outputs(call, *args, **kwargs)
            case "inputs":
                output = self._split_by_inputs(call, *args, **kwargs)
            case "rows":
                output = self._split_by_rows(call, *args, **kwargs)
        if self.copy_tag is not None:
            self.copy_tag(output, *args, *kwargs.values())  # the one input
        return output

    @property
    def _activations(self) -> Activations:
        """What the module is called with: slices in a region."""
        region = Region.current
        return WholeActivations(self.group) if region is None else SlicedActivations(region)

    def _part(self, name: str) -> Tensor:
        part = self.states[name].part()
        assert part is not None  # ``is_ready``
        return part

    @contextmanager
    def _parts_in_place(self, **replaced: Any) -> Iterator[None]:
        """Let the module's attributes be this rank's parts, and those in ``replaced``."""
        attributes = self.plan.module.__dict__
        shown = {name: self._part(name) for name in self.states} | replaced
        before = {name: attributes[name] for name in shown if name in attributes}
        attributes.update(shown)  # found before ``_parameters``
        try:
            yield
        finally:
            for name in shown.keys() - before.keys():
                attributes.pop(name, None)
            attributes.update(before)  # in the same order

    def _split_by_outputs(self, call: Callable[..., Any], input: Tensor) -> Tensor:
        """Return the features of all ranks, or in a block of this one: shape (..., features)."""
        plan, replaced = self.plan, {}
        if plan.size_attribute:
            replaced[plan.size_attribute] = self._part("weight").shape[plan.dim]
        activations = self._activations
        input, saved = activations.for_outputs(input)
        with self._parts_in_place(**replaced), saved:
            output: Tensor = call(input)
        if self.in_block:
            return output
        return activations.gather(output, plan.output_dim, plan.out_features)

    def _split_by_inputs(self, call: Callable[..., Any], input: Tensor) -> Tensor:
        """Return the sum of the ranks' products, and the bias; shape (..., out_features)."""
        activations = self._activations
        if not self.in_block:
            input = activations.for_inputs(input)
        bias = self.plan.module._parameters.get("bias")
        with self._parts_in_place(bias=None):
            output = call(input)
        total = activations.sum(output)
        return total if bias is None else total + bias

    def _split_by_rows(self, call: Callable[..., Any], input: Tensor) -> Tensor:
        """Return the embeddings of rows on any rank; shape (*input.shape, embedding_dim)."""
        if Region.current is not None:
            raise NotSplittableError("an embedding in it is split")
        module: Any = self.plan.module
        weight, total = self._part("weight"), self.states["weight"].shape[0]
        rows = weight.shape[0]
        start = dist.get_rank(self.group) * chunk_size(total, self.group.size())
        local = input - start
        exists = (input >= 0) & (input < total)  # others are an error, as on one device
        elsewhere = exists & ((local < 0) | (local >= rows))
        padding = module.padding_idx if module.padding_idx is None else module.padding_idx - start
        if padding is not None and not 0 <= padding < rows:
            padding = None
        if rows:
            with self._parts_in_place(padding_idx=padding):
                found: Tensor = call(local.masked_fill(elsewhere, 0))
        else:
            found = weight.new_zeros((*input.shape, weight.shape[1])) + weight.sum()
        return self._activations.sum(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))
