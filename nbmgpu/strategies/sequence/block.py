"""Blocks of a model, which run on this rank's slice of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.environment.float32 import full_float32
from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.recorded_outputs import recorded_inside_layers

from .region import Exchange, NotSplittableError, Region
from .sequence_tensor import SequenceTensor, whole_of
from .slices import run_on_slices
from .trial import BlockTrial, Splitting, Subjects, copied, obstacle


@dataclass(frozen=True)
class BlockSettings:
    """What all blocks of a model share.

    Attributes:
        strategy: name of the strategy, for messages.
        group: the ranks, in the order of their slices.
        exchange: how ranks share attention.
        on_whole: is told which block runs on whole sequences, and why.
        subjects: what a trial calls.
        tries_single: whether a trial may have slices of a single position on some ranks only.
    """

    strategy: str
    group: ProcessGroup
    exchange: Exchange
    on_whole: Callable[[nn.Module, str], None]
    subjects: Subjects = copied
    tries_single: bool = True


class SequenceBlock:
    """One block.

    Attributes:
        module: the block.
        has_run: whether a call has been split.
        begins: whether a call with whole tensors is split.  Modules after the last block, such as
            the head, are split only where their argument is.
    """

    def __init__(self, module: nn.Module, settings: BlockSettings, begins: bool) -> None:
        """Initialize the block."""
        self.module = module
        self.begins = begins
        self.has_run = False
        self._settings = settings
        self._splittings: dict[Hashable, Splitting] = {}

    def forward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the forward pass on a slice if possible; a ``ForwardWrapper``."""
        if Region.current is not None:
            return call(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        first = self._sequence_argument(leaves)
        if first is None:
            return self._run_whole(call, leaves, spec)
        splitting = self._splitting(call, leaves, spec, first)
        if splitting.dim is None or not self._has_slices(first, splitting.dim):
            return self._run_whole(call, leaves, spec)
        self.has_run = True
        region = self._region(first, splitting.dim, splitting.exchange, splitting.operations)
        try:
            found, output_spec = run_on_slices(
                self.module, call, region, (leaves, spec), splitting.arguments
            )
            if len(found) != len(splitting.outputs):
                raise NotSplittableError("its output has another structure than in its trial")
        except NotSplittableError as error:
            raise self._other_call(error) from None
        outputs = [
            SequenceTensor.make(x, region.layout_of_slice(x, region.dim)) if split else x
            for x, split in zip(found, splitting.outputs, strict=True)
        ]
        return tree_unflatten(outputs, output_spec)

    def _other_call(self, error: NotSplittableError) -> StrategyError:
        name, strategy = type(self.module).__name__, self._settings.strategy
        return StrategyError(
            format_message(
                f"Under {strategy}, a layer of class {name} cannot run on slices of the sequence: "
                f"{error}",
                "Whether a tensor has the sequence as a dimension is found out at a layer's first "
                "call, and must stay so",
                "%%mgpu --strategy ddp",
            )
        )

    def _run_whole(self, call: Callable[..., Any], leaves: list[Any], spec: Any) -> Any:
        args, kwargs = tree_unflatten([whole_of(leaf) for leaf in leaves], spec)
        return call(*args, **kwargs)

    def _sequence_argument(self, leaves: list[Any]) -> Tensor | None:
        """Return the first argument if it may have a sequence."""
        first = next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)
        if first is None or first.dim() != 3 or not first.is_floating_point():
            return None
        return first if self.begins or isinstance(first, SequenceTensor) else None

    def _has_slices(self, first: Tensor, dim: int) -> bool:
        """Whether a dimension has a slice for each rank."""
        return all(self._region(first, dim, None).sizes)

    def _can_be_tried(self, first: Tensor, dim: int) -> bool:
        sizes = self._region(first, dim, None).sizes
        is_single_somewhere = min(sizes) == 1 < max(sizes)
        return all(sizes) and (self._settings.tries_single or not is_single_somewhere)

    def _region(
        self, first: Tensor, dim: int, exchange: Exchange | None, known: Sequence[bool] = ()
    ) -> Region:
        """Return the region of a call whose first argument is ``first``."""
        length, batch = first.shape[dim], first.shape[1 - dim]
        return Region(dim, length, batch, self._settings.group, exchange, known)

    def _splitting(
        self, call: Callable[..., Any], leaves: list[Any], spec: Any, first: Tensor
    ) -> Splitting:
        """Return how a call with such arguments is split; try it the first time."""
        kinds = tuple(_kind(leaf, first) for leaf in leaves)
        key = spec, kinds, self.module.training, torch.is_grad_enabled(), self._observers()
        found = self._splittings.get(key)
        dims = [dim for dim in (1, 0) if self._can_be_tried(first, dim)]
        if found is None and dims:
            # What works without attention over ranks needs none, in any later call.
            candidates = [
                self._region(first, dim, exchange)
                for dim in dims
                for exchange in (None, self._settings.exchange)
            ]
            found = self._splittings[key] = self._try(call, leaves, spec, candidates)
            if found.dim is None:
                self._settings.on_whole(self.module, found.reason)
        return found or Splitting(None)

    def _try(
        self, call: Callable[..., Any], leaves: list[Any], spec: Any, candidates: list[Region]
    ) -> Splitting:
        """Return how the call is split in the first of ``candidates`` that is right."""
        if reason := obstacle(self.module, leaves):
            return Splitting(None, reason=reason)
        with full_float32(), self._settings.subjects(self.module, call) as subject:
            return BlockTrial(subject, leaves, spec).run(candidates)

    def _observers(self) -> Hashable:
        """Return what sees the inside of the block: hooks, and recorders of transformers."""
        hooks = sum(
            len(each._forward_hooks) + len(each._forward_pre_hooks)
            for each in self.module.modules()
        )
        return hooks, tuple(recorded_inside_layers())


def _kind(leaf: Any, first: Tensor) -> Hashable:
    """Return what a trial depends on in a leaf of the arguments."""
    if isinstance(leaf, Tensor):
        sizes = tuple(dim for dim in range(leaf.dim()) if leaf.shape[dim] in first.shape[:2])
        return "tensor", leaf.dim(), leaf.dtype, sizes
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return "number"
    return type(leaf), repr(leaf) if isinstance(leaf, bool | str | slice | type(None)) else ""
