"""Which fraction of a tensor this rank has: by the module that allocates it, or its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .model_parts import ModelParts


class RunningRegion:
    """The region of a model that runs now, in the forward or in the backward pass.

    A node of autograd's graph belongs to the region whose forward pass has created it, which its
    sequence number shows.

    Attributes:
        parts: the parts of the model.
        largest_message: bytes of the largest output that is communicated.
        all_messages: bytes of all outputs that are communicated in the forward pass.
    """

    def __init__(self, parts: ModelParts) -> None:
        """Hook the modules of ``parts``."""
        self.parts = parts
        self.largest_message = self.all_messages = 0
        self._fractions: list[float] = []
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, float]] = []  # of sequence numbers, inner ones first
        self._after: tuple[float, float] = (math.inf, 1.0)  # what follows layers on slices
        for module, fraction in parts.regions.items():
            module.register_forward_pre_hook(self._entering(fraction), with_kwargs=True)
            module.register_forward_hook(self._leave)
        for module in parts.sent:
            module.register_forward_hook(self._count_message)

    def fraction(self) -> float:
        """Return the fraction of a tensor that is allocated now."""
        if self._fractions:
            return self._fractions[-1]
        start, after = self._after
        node = torch._C._current_autograd_node() if self._ranges else None
        if node is None:
            return after
        number = node._sequence_nr()
        inside = (f for first, end, f in self._ranges if first <= number < end)
        return next(inside, after if number >= start else 1.0)

    def output_fraction(self) -> float:
        """Return the fraction of the model's output that a rank has."""
        return self._after[1]

    def enter(self, fraction: float) -> None:
        """Begin a region."""
        self._fractions.append(fraction)
        self._starts.append(torch._C._autograd._get_sequence_nr())

    def leave(self) -> None:
        """End the innermost region."""
        end = torch._C._autograd._get_sequence_nr()
        self._ranges.append((self._starts.pop(), end, self._fractions.pop()))

    def _entering(self, fraction: float) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._has_slices and self._fractions:  # what a block returns is on slices, too
                self.enter(min(fraction, self._fractions[0]))
                return
            first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)
            self.enter(1.0 if self._is_whole(first) else fraction)

        return enter

    @property
    def _has_slices(self) -> bool:
        """Whether layers run on slices of the sequence."""
        return self.parts.attention != "as computed"

    def _is_whole(self, first: Tensor | None) -> bool:
        """Whether a layer has no sequence that can be split; see ``strategies.sequence.block``."""
        if not self._has_slices:
            return False
        is_sequence = first is not None and first.dim() == 3 and first.is_floating_point()
        return not is_sequence or first is None or first.shape[1] < self.parts.ranks

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.leave()
        _, end, fraction = self._ranges[-1]
        if self._has_slices and fraction < 1.0:
            # Outputs stay on slices up to the loss; see ``strategies.sequence.sequence_rows``.
            self._after = end, fraction

    def _count_message(self, module: nn.Module, args: Any, output: Any) -> None:
        values = dict(output) if isinstance(output, dict) else output
        size = sum(t.nbytes for t in tree_leaves(values) if isinstance(t, Tensor))
        if self._has_slices and self.fraction() < 1.0:
            size = int(size * self.parts.sent[module])
        self.largest_message = max(self.largest_message, size)
        self.all_messages += size
