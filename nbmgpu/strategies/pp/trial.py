"""A trial of a block: the structure of its output, and whether it may run on parts of a batch.

It may if two halves of a batch have the outputs of the whole, also with other numbers in one half,
and a call leaves nothing behind.
Dropout and batch normalization fail this in training, and a layer that mixes samples always does.
The trial runs a copy of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.environment import random_state
from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.graph_leaves import leaves_of_graph
from nbmgpu.strategies.host_checks import host_checks
from nbmgpu.strategies.module_copy import ModuleState, copy_for_trial
from nbmgpu.strategies.outcome import Outcome, largest_of
from nbmgpu.strategies.tensor_reads import ReadRecorder, TooManyReadsError
from nbmgpu.strategies.trial_factors import multiplied, trial_factors

from .call import BlockInfo, Mode


class BlockTrial:
    """Tries one call of a block on its owner."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        leaves: list[Any],
        spec: Any,
        before: ReadRecorder | None = None,
    ) -> None:
        """Initialize the trial.

        Args:
            name: name of the block, for messages.
            module: the block, with the parameters of this rank.
            leaves, spec: the arguments of the call.
            before: what calls with other numbers have read.
        """
        self._name = name
        self._module = module
        self._leaves = leaves
        self._spec = spec
        self._reads = ReadRecorder(before)
        self._changes_state = False

    def run(self, batch_size: int, try_parts: bool) -> tuple[BlockInfo, Any]:
        """Return what the trial finds out, and the output.

        Args:
            batch_size: size of the first dimension of the segment's first input.
            try_parts: whether the block may run on parts of a batch at all.

        Raises:
            StrategyError: an output is neither a tensor nor None, or a parameter from outside of
                the block is used.
        """
        with random_state.kept():
            before = random_state.capture()
            whole, spec = self._call(self._leaves, self._module.training)
            draws = random_state.capture() != before
            changes = self._changes_state
        tensors = tuple(isinstance(x, Tensor) for x in whole)
        if not all(t or x is None for t, x in zip(tensors, whole, strict=True)):
            raise self._other_output(whole)
        none = (False,) * len(self._leaves)
        candidates = list(self._batched(batch_size)) if try_parts else []
        for batched in candidates:
            mode = self._mode(whole, batched, batch_size, draws or changes)
            if mode != "whole":
                outputs = tuple(_is_batched(x, batch_size) for x in whole)
                break
        else:
            outputs, batched, mode = (False,) * len(whole), none, "whole"
        info = BlockInfo(tensors, outputs, batched, mode, draws, changes, spec)
        return info, tree_unflatten(whole, spec)

    def _call(self, leaves: list[Any], training: bool) -> tuple[list[Any], Any]:
        """Call a copy of the block, which the call may change."""
        module = self._copy()
        if module.training != training:
            module.train(training)
        forward = type(module).forward.__get__(module)
        leaves = [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        before = ModuleState(module)
        with outside_of_checkpoints(), self._reads:
            output = forward(*args, **kwargs)
        self._check_arguments(leaves, args, kwargs)
        self._changes_state = not before.is_that_of(module)
        found, spec = tree_flatten(output)
        self._check_graph(found, module)
        detached = [x.detach() if isinstance(x, Tensor) else x for x in found]
        return detached, spec

    def _copy(self) -> nn.Module:
        try:
            return copy_for_trial(self._module)
        except Exception as error:
            raise self._no_copy(error) from error

    def _no_copy(self, error: Exception) -> StrategyError:
        return StrategyError(
            format_message(
                f"Under pp, layer {self._name} cannot be copied, to be tried on parts of a batch "
                f"({type(error).__name__}: {error})",
                "Layers can be copied by copy.deepcopy",
                "%%mgpu --strategy fsdp",
            )
        )

    def _check_arguments(self, leaves: list[Any], args: Any, kwargs: Any) -> None:
        """Refuse a change of a list or dict among the arguments: the cell's own would not have it.

        Raises:
            StrategyError: there is such a change.
        """
        found, spec = tree_flatten((args, kwargs))
        if spec != self._spec or any(x is not y for x, y in zip(found, leaves, strict=True)):
            raise StrategyError(
                format_message(
                    f"Under pp, layer {self._name} changes a list or dict that it is called with",
                    "Only one rank would see the change",
                    "return the values, or %%mgpu --strategy fsdp",
                )
            )

    def _check_graph(self, outputs: list[Any], module: nn.Module) -> None:
        """Refuse parameters from outside: their gradients would be on one rank only."""
        own = {id(p) for p in module.parameters()}
        for leaf in leaves_of_graph(outputs):
            if id(leaf) not in own:
                raise StrategyError(
                    format_message(
                        f"Under pp, layer {self._name} uses a tensor of shape {tuple(leaf.shape)} "
                        "that requires a gradient and is neither its parameter nor its argument",
                        "The gradient would be on the layer's rank only",
                        "%%mgpu --strategy fsdp",
                    )
                )

    def _batched(self, batch_size: int) -> Iterator[tuple[bool, ...]]:
        """Yield which leaves may have the batch in their first dimension, the likeliest first."""
        sized = tuple(_is_batched(leaf, batch_size) for leaf in self._leaves)
        if batch_size > 1 and any(sized):
            yield sized
            first = sized.index(True)
            if sum(sized) > 1:
                yield tuple(i == first for i in range(len(sized)))

    def _mode(
        self, whole: list[Any], batched: tuple[bool, ...], batch_size: int, has_effects: bool
    ) -> Mode:
        """Return whether halves of the batch have the outputs of the whole.

        Args:
            whole: the leaves of the output for the whole batch.
            batched: which arguments are halved.
            batch_size: of the whole batch.
            has_effects: whether a call draws random numbers, or changes the block.
        """
        if not has_effects and self._are_independent(
            whole, batched, batch_size, self._module.training
        ):
            return "exact"
        if not self._module.training:
            return "whole"
        with random_state.kept():
            evaluated, _ = self._call(self._leaves, training=False)
        equal = self._are_independent(evaluated, batched, batch_size, training=False)
        return "random" if equal else "whole"

    def _are_independent(
        self, whole: list[Any], batched: tuple[bool, ...], batch_size: int, training: bool
    ) -> bool:
        """Whether halves of the batch have the outputs of the whole, whatever its numbers are."""
        equal = self._halves_are_equal(whole, batched, batch_size, training)
        for factor in trial_factors(self._reads) if equal else ():
            leaves = [
                multiplied(leaf, 0, batch_size // 2, factor) if is_halved else leaf
                for leaf, is_halved in zip(self._leaves, batched, strict=True)
            ]
            trial = BlockTrial(self._name, self._module, leaves, self._spec, self._reads)
            with host_checks(leaves):
                try:
                    with random_state.kept():
                        outputs, _ = trial._call(leaves, training)
                    if Outcome(outputs, [], None).is_finite():
                        found = trial._halves_are_equal(outputs, batched, batch_size, training)
                        equal = equal and found
                except TooManyReadsError:
                    return False
                except Exception:
                    continue  # it does not take such numbers
        return equal

    def _halves_are_equal(
        self, whole: list[Any], batched: tuple[bool, ...], batch_size: int, training: bool
    ) -> bool:
        half = batch_size // 2
        parts = []
        with random_state.kept():
            for rows in (slice(0, half), slice(half, batch_size)):
                leaves = [x[rows] if b else x for x, b in zip(self._leaves, batched, strict=True)]
                try:
                    found, _ = self._call(leaves, training)
                except StrategyError:
                    raise
                except Exception:
                    return False  # the shapes do not fit: this is not the batch
                parts.append(found)
        if any(len(part) != len(whole) for part in parts):
            return False
        return all(
            _equal(full, first, second, batch_size)
            for full, first, second in zip(whole, *parts, strict=True)
        )

    def _other_output(self, leaves: list[Any]) -> StrategyError:
        other = next(x for x in leaves if not isinstance(x, Tensor) and x is not None)
        return StrategyError(
            format_message(
                f"Under pp, layer {self._name} returns a {type(other).__name__}",
                "Layers return tensors, also in tuples and dicts",
                "%%mgpu --strategy fsdp",
            )
        )


def _is_batched(leaf: Any, batch_size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch_size


def _equal(whole: Any, first: Any, second: Any, batch_size: int) -> bool:
    """Whether the outputs of two halves are that of the whole, but for rounding."""
    if not isinstance(whole, Tensor):
        return first is None and second is None
    joined = (first, second)
    if _is_batched(whole, batch_size):
        fits = all(part.dim() == whole.dim() for part in joined)
        fits = fits and all(part.shape[1:] == whole.shape[1:] for part in joined)
        pairs = [(whole, torch.cat(joined))] if fits else []
    else:
        pairs = [(whole, part) for part in joined]
    if not pairs or any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        return False
    if not whole.is_floating_point():
        return all(torch.equal(a, b) for a, b in pairs)
    epsilon = torch.finfo(whole.dtype).eps
    largest = largest_of(whole)
    return all(
        torch.allclose(a, b, 1e3 * epsilon, 50 * epsilon * largest, equal_nan=True)
        for a, b in pairs
    )
