"""A trial of a block: whether slices of the sequence have the outputs and gradients of the whole.

They do not where positions meet outside of ``scaled_dot_product_attention``: in a convolution or a
recurrent network over the sequence, in a position bias made from the length, or in batch
normalization.  The trial runs a copy of the block, on whole sequences and on slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.generators import kept_random_state
from nbmgpu.strategies.module_copy import ModuleState, copy_for_trial, hooks_of_cell
from nbmgpu.strategies.outcome import Outcome, detached_copy
from nbmgpu.strategies.recorded_outputs import recorded_inside_layers

from .region import Exchange, Region
from .sequence_tensor import whole_of
from .slices import run_on_slices, split_arguments


@dataclass(frozen=True)
class Splitting:
    """How the calls of a block with certain arguments are split.

    Attributes:
        dim: dimension that is split in its arguments; None if it runs on whole tensors.
        exchange: how ranks share attention; None if the batch is split.
        arguments, outputs: which leaves of its arguments and its output are slices.
        operations: whether each attention and dropout acts on slices; see ``Region``.
        reason: why it runs on whole tensors.
    """

    dim: int | None
    exchange: Exchange | None = None
    arguments: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()
    operations: tuple[bool, ...] = ()
    reason: str = ""


class BlockTrial:
    """Tries one call of a block."""

    def __init__(self, module: nn.Module, leaves: list[Any], spec: Any) -> None:
        """Initialize the trial.

        Args:
            module: the block.
            leaves, spec: the arguments of the call.
        """
        self._module = module
        self._leaves = [detached_copy(whole_of(leaf)) for leaf in leaves]
        self._spec = spec

    def run(self, candidates: Sequence[Region]) -> Splitting:
        """Return how the call can be split: by the first of ``candidates`` that is right.

        All ranks return the same; collective.
        """
        reason = self._obstacle()
        if reason:
            return Splitting(None, reason=reason)
        module = copy_for_trial(self._module)
        before, versions = ModuleState(module), self._versions()
        with outside_of_checkpoints(), kept_random_state():
            whole = self._call(module)
        if not before.is_that_of(module):
            return Splitting(None, reason="a call changes its buffers or attributes")
        if versions != self._versions():
            return Splitting(None, reason="it changes its arguments in place")
        for region in candidates:
            splitting = self._try(module, region, whole)
            if splitting.dim is not None or region is candidates[-1]:
                return splitting
        return Splitting(None, reason="it is called with too few positions")

    def _obstacle(self) -> str:
        """Return why the block cannot be tried."""
        if any(map(hooks_of_cell, list(self._module.modules())[1:])):
            return "it has hooks on modules inside, which would see slices"
        if recorded := recorded_inside_layers():
            return f"{' and '.join(recorded)} are recorded inside of it"
        for leaf in self._leaves:
            if not isinstance(leaf, Tensor | bool | int | float | str | slice | type(None)):
                return f"it is called with a {type(leaf).__name__}, which it may change"
        return ""

    def _versions(self) -> list[int]:
        return [leaf._version for leaf in self._leaves if isinstance(leaf, Tensor)]

    def _try(self, module: nn.Module, region: Region, whole: Outcome) -> Splitting:
        """Return how a call is split in a region, or why it cannot."""
        reason, splitting = "", Splitting(None)
        try:
            with outside_of_checkpoints(), kept_random_state():
                sliced, splitting = self._call_on_slices(module, region)
            if not sliced.is_that_of(whole):
                reason = "its positions depend on each other outside of attention"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        failed = torch.tensor([bool(reason)], dtype=torch.int32)
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=region.group)
        if failed:
            reason = reason or "it fails on the slice of another rank"
            return Splitting(None, reason=reason)
        return splitting

    def _call(self, module: nn.Module) -> Outcome:
        """Call the copy on whole tensors."""
        leaves = [_leaf(x) for x in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        outputs, spec = tree_flatten(_forward(module)(*args, **kwargs))
        return Outcome.of(outputs, spec, _inputs(leaves, module))

    def _call_on_slices(self, module: nn.Module, region: Region) -> tuple[Outcome, Splitting]:
        """Call the copy on slices, and gather its outputs."""
        leaves = [_leaf(x) for x in self._leaves]
        arguments = split_arguments(leaves, region)
        parts, spec = run_on_slices(
            module, _forward(module), region, (leaves, self._spec), arguments
        )
        are_slices = tuple(_is_slice(x, region) for x in parts)
        outputs = [
            region.gather(x, region.dim) if is_slice else x
            for x, is_slice in zip(parts, are_slices, strict=True)
        ]
        outcome = Outcome.of(outputs, spec, _inputs(leaves, module))
        operations = tuple(region.found)
        return outcome, Splitting(region.dim, region.exchange, arguments, are_slices, operations)


def _forward(module: nn.Module) -> Callable[..., Any]:
    return type(module).forward.__get__(module)  # type: ignore[no-any-return]


def _inputs(leaves: list[Any], module: nn.Module) -> list[Tensor]:
    return [*(x for x in leaves if isinstance(x, Tensor)), *module.parameters()]


def _leaf(leaf: Any) -> Any:
    """Return a tensor that shares memory and version, and has no graph."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.requires_grad)


def _is_slice(leaf: Any, region: Region) -> bool:
    return (
        isinstance(leaf, Tensor)
        and leaf.dim() > region.dim
        and leaf.shape[region.dim] == region.size
    )
