"""Forward passes of modules whose parameters are split over ranks.

A wrapper runs the module's own ``forward`` with this rank's parts in place of its parameters, with
collectives before and after.  So hooks of the user see the full inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.sharding.tensor_shard import ShardLayout

from .collectives import gather_parts, replicate_input, split_parts, sum_partials
from .plan import ModulePlan, Style
from .tp_param import TPParamState


@dataclass
class ParallelModule:
    """A module that is split, with its parts.

    Attributes:
        plan: how it is split.
        states: the states of its split parameters, by name.
        group: the ranks that hold the parts.
    """

    plan: ModulePlan
    states: dict[str, TPParamState]
    group: ProcessGroup | None
    _forwards: dict[Style, Callable[..., Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Choose the forward pass."""
        self._forwards = {
            "colwise": self._colwise,
            "colwise_gather": self._colwise,
            "rowwise": self._rowwise,
            "rowwise_split": self._rowwise,
            "embedding": self._embedding,
        }

    def forward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the forward pass; a ``ForwardWrapper``."""
        return self._forwards[self.plan.style](call, *args, **kwargs)

    @contextmanager
    def _parts_in_place(self, **replaced: Any) -> Iterator[None]:
        """Let the module's attributes be this rank's parts, and those in ``replaced``."""
        attributes = self.plan.module.__dict__
        shown = {name: state.local for name, state in self.states.items()} | replaced
        attributes.update(shown)  # found before ``_parameters``
        try:
            yield
        finally:
            for name in shown:
                attributes.pop(name, None)

    def _colwise(self, call: Callable[..., Any], input: Tensor) -> Tensor:
        """Return the features of this rank, or those of all ranks: shape (..., out_features)."""
        extra = {}
        if self.plan.size_attribute:
            extra[self.plan.size_attribute] = self.states["weight"].local.shape[self.plan.dim]
        with self._saved(*extra), self._parts_in_place(**extra):
            output: Tensor = call(replicate_input(input, self.group))
        if self.plan.style == "colwise":
            return output
        dim = self.plan.output_dim % output.dim()
        shape = torch.Size((*output.shape[:dim], self.plan.out_features, *output.shape[dim + 1 :]))
        return gather_parts(output, ShardLayout(shape, dim, self.group, self.plan.blocks))

    def _rowwise(self, call: Callable[..., Any], input: Tensor) -> Tensor:
        """Return the sum of the ranks' products, and the bias; shape (..., out_features)."""
        if self.plan.style == "rowwise_split":
            layout = ShardLayout(input.shape, input.dim() - 1, self.group)
            input = split_parts(input, layout)
        bias = self.plan.module._parameters.get("bias")
        with self._parts_in_place(bias=None):
            output = call(input)
        total = sum_partials(output, self.group)
        return total if bias is None else total + bias

    def _embedding(self, call: Callable[..., Any], input: Tensor) -> Tensor:
        """Return the embeddings of rows on any rank; shape (*input.shape, embedding_dim)."""
        weight, layout = self.states["weight"].local, self.states["weight"].shard.layout
        module: Any = self.plan.module
        start = torch.distributed.get_rank(self.group) * layout.chunk_size
        local = input - start
        elsewhere = (local < 0) | (local >= weight.shape[0])
        padding = module.padding_idx
        if padding is not None:
            padding -= start
            padding = padding if 0 <= padding < weight.shape[0] else None
        if not weight.shape[0]:
            found = weight.new_zeros((*input.shape, weight.shape[1])) + weight.sum()
        else:
            found = F.embedding(local.masked_fill(elsewhere, 0), weight, padding)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return sum_partials(found, self.group)

    @contextmanager
    def _saved(self, *names: str) -> Iterator[None]:
        """Restore instance attributes ``names`` afterwards."""
        attributes = self.plan.module.__dict__
        before = {name: attributes[name] for name in names}
        try:
            yield
        finally:
            attributes.update(before)
