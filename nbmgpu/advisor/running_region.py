"""Which fraction of a tensor this rank has: by the module that allocates it, or its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
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
            first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)
            self.enter(1.0 if self._is_whole(first) else fraction)

        return enter

    def _is_whole(self, first: Tensor | None) -> bool:
        """Whether a layer has no sequence that can be split; see ``strategies.sp.block``."""
        if self.parts.attention == "as computed":
            return False
        is_sequence = first is not None and first.dim() == 3 and first.is_floating_point()
        return not is_sequence or first is None or first.shape[1] < self.parts.ranks

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.leave()
        _, end, fraction = self._ranges[-1]
        if self.parts.attention != "as computed" and fraction < 1.0:
            # Outputs stay on slices up to the loss; see ``strategies.sp.sequence_rows``.
            self._after = end, fraction

    def _count_message(self, module: nn.Module, args: Any, output: Any) -> None:
        values = dict(output) if isinstance(output, dict) else output
        size = sum(t.nbytes for t in tree_leaves(values) if isinstance(t, Tensor))
        self.largest_message = max(self.largest_message, size)
        self.all_messages += size


class SharedAttention(TorchFunctionMode):
    """Counts what attention needs of whole sequences, where layers run on slices."""

    def __init__(
        self,
        regions: list[RunningRegion],
        count_in_full: Callable[[Tensor, RunningRegion], None],
        hold: Callable[[float, RunningRegion], None],
    ) -> None:
        """Watch calls of ``scaled_dot_product_attention``.

        Args:
            regions: all regions.
            count_in_full: counts a tensor in full in one of them.
            hold: counts bytes in one of them until the end of the step.
        """
        super().__init__()
        self._regions = [r for r in regions if r.parts.attention != "as computed"]
        self._count_in_full = count_in_full
        self._hold = hold
        self._masks: set[tuple[RunningRegion, int, int]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function."""
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention or len(args) < 3:
            return func(*args, **kwargs)
        drops = bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
        for region in self._regions:
            # One device draws the dropout of all heads and positions at once.
            needs_keys = drops or region.parts.attention == "own queries"
            for tensor in args[:3] if drops else args[1:3] if needs_keys else ():
                self._count_in_full(tensor, region)
            if drops:
                region.enter(1.0)
            elif needs_keys and kwargs.get("is_causal"):
                self._hold_mask(region, args[0], args[1])
        try:
            return func(*args, **kwargs)
        finally:
            for region in self._regions if drops else ():
                region.leave()

    def _hold_mask(self, region: RunningRegion, query: Tensor, key: Tensor) -> None:
        """Count the mask of this rank's queries, which all layers share."""
        queries, keys = query.shape[-2], key.shape[-2]
        if (region, queries, keys) not in self._masks:
            self._masks.add((region, queries, keys))
            self._hold(queries * keys * query.element_size() / region.parts.ranks, region)
