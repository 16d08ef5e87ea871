"""Blocks of layers between which activations stay split."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.environment import random_state
from nbmgpu.environment.float32 import full_float32
from nbmgpu.errors import RankError
from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.host_checks import host_checks
from nbmgpu.strategies.module_copy import ModuleState, kept_module_state, open_gates
from nbmgpu.strategies.outcome import Outcome, detached_copy
from nbmgpu.strategies.sequence.parameters import replicate_parameters, replicated_parameters
from nbmgpu.strategies.sequence.region import Region
from nbmgpu.strategies.tensor_reads import ReadRecorder
from nbmgpu.strategies.trial_factors import trial_factors

from .activations import gathered_arguments, whole_arguments
from .parallel_modules import ParallelModule
from .split_block import SplitBlock


class ParallelBlock:
    """A block whose layers are split.

    Attributes:
        block: the block.
        layers: its layers.
    """

    def __init__(self, block: SplitBlock, layers: tuple[ParallelModule, ...]) -> None:
        """Initialize the block."""
        self.block = block
        self.layers = layers
        self._trials: dict[Hashable, bool] = {}
        self._gathers: dict[Hashable, bool] = {}

    def forward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the forward pass with split activations if nobody sees them; a ``ForwardWrapper``."""
        leaves, spec = tree_flatten((args, kwargs))
        key = self._key(leaves, spec)
        if not self._can_stay_split(call, leaves, spec, key):
            return call(*args, **kwargs)
        region = Region.current
        if region is None:
            with self._split():
                return call(*args, **kwargs)
        if (key, region.dim) not in self._gathers:
            with full_float32():
                gathers = self._gathers_arguments(region, call, leaves, spec)
            self._gathers[key, region.dim] = gathers
        if self._gathers[key, region.dim]:
            args, kwargs = tree_unflatten(gathered_arguments(region, leaves), spec)
        with self._split():
            output = call(*args, **kwargs)
        region.gathered = None  # is large, and nothing after the block uses it
        return output

    def _key(self, leaves: list[Any], spec: Any) -> Hashable:
        """Return what trials depend on."""
        kinds = tuple(x.dim() if isinstance(x, Tensor) else type(x) for x in leaves)
        return spec, kinds, self.block.module.training, torch.is_grad_enabled()

    @contextmanager
    def _split(self) -> Iterator[None]:
        """Let activations stay split in the body."""
        replicate = functools.partial(replicate_parameters, self.layers[0].group)
        for layer in self.layers:
            layer.in_block = True
        try:
            with ExitStack() as stack:
                if Region.current is None:  # which sums the gradients of all parameters
                    for module in self.block.on_parts:
                        stack.enter_context(replicated_parameters(module, replicate))
                yield
        finally:
            for layer in self.layers:
                layer.in_block = False

    def _can_stay_split(
        self, call: Callable[..., Any], leaves: list[Any], spec: Any, key: Hashable
    ) -> bool:
        is_ready = all(layer.is_ready() for layer in self.layers)
        if not is_ready or self.block.has_hooks() or not self.block.is_allowed():
            return False
        if self.block.is_certain:
            return True
        if key not in self._trials:
            whole = leaves if Region.current is None else whole_arguments(Region.current, leaves)
            with full_float32(), outside_of_checkpoints(), Region.inactive():
                self._trials[key] = self._try(call, whole, spec)
        return self._trials[key]

    def _gathers_arguments(
        self, region: Region, call: Callable[..., Any], leaves: list[Any], spec: Any
    ) -> bool:
        """Return whether the block takes whole arguments, and its layers do not gather theirs.

        It does if it computes with their shape, as attention does.  Otherwise a normalization or a
        residual addition inside of it runs on slices.
        """
        with Region.inactive():
            whole = self._split_outcome(call, whole_arguments(region, leaves), spec)
        try:
            with region.anew().active():
                found = self._split_outcome(call, leaves, spec)
            parts = [region.slice_of(x) for x in whole.outputs]
            right = found.is_that_of(Outcome(parts, [], whole.spec))
        except Exception:
            right = False  # shapes do not fit, here and on all ranks
        return not self._on_all_ranks(right)

    def _split_outcome(self, call: Callable[..., Any], leaves: list[Any], spec: Any) -> Outcome:
        """Return the outputs of a call whose activations stay split, without gradients."""
        args, kwargs = tree_unflatten([detached_copy(leaf) for leaf in leaves], spec)
        state = kept_module_state(self.block.module)
        with torch.no_grad(), random_state.kept(), state, self._split():
            outputs, output_spec = tree_flatten(call(*args, **kwargs))
        return Outcome(outputs, [], output_spec)

    def _on_all_ranks(self, right: bool) -> bool:
        everywhere = torch.tensor([right], dtype=torch.int32)
        dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=self.layers[0].group)
        return bool(everywhere)

    def _try(self, call: Callable[..., Any], leaves: list[Any], spec: Any) -> bool:
        """Return whether split activations give the same outputs and gradients; collective.

        They do not if what is between two layers depends on several features, such as a
        normalization or a limit, or on their number, or draws random numbers.
        """
        plain = (Tensor, bool, int, float, str, type(None))
        if not all(isinstance(leaf, plain) for leaf in leaves):
            return False
        module, reads = self.block.module, ReadRecorder()
        before = ModuleState(module)
        with kept_module_state(module), open_gates(self._parameters()):

            def is_split(recorder: ReadRecorder) -> bool:
                with recorder:
                    whole = self._outcome(call, leaves, spec)
                if not before.is_that_of(module):
                    return False
                if recorder is not reads and not whole.is_finite():
                    return True  # the comparison would tell nothing
                with recorder:
                    found = self._outcome(call, leaves, spec, self._split())
                return found.is_that_of(whole)

            right = self._everywhere(lambda: is_split(reads))
            for factor in trial_factors(reads) if right else ():
                with self._features_multiplied(factor), host_checks(leaves):
                    right = right and self._everywhere(lambda: is_split(ReadRecorder(reads)))
        return right

    def _everywhere(self, check: Callable[[], bool]) -> bool:
        """Return whether ``check`` is true on all ranks; where it raises, it is not; collective."""
        try:
            right = check()
        except RankError:  # no rank can go on
            raise
        except Exception:
            right = False  # shapes do not fit
        return self._on_all_ranks(right)

    @contextmanager
    def _features_multiplied(self, factor: float) -> Iterator[None]:
        """Multiply the last rank's features in the body, without a new version of parameters."""
        layers = [layer for layer in self.layers if layer.plan.style == "outputs"]
        is_last = dist.get_rank(self.layers[0].group) == self.layers[0].group.size() - 1
        states = [s for layer in layers for s in layer.states.values()] if is_last else []
        parts = [part.data for state in states if (part := state.part()) is not None]
        before = [part.clone() for part in parts]
        for part in parts:
            part.mul_(factor)
        try:
            yield
        finally:
            for part, value in zip(parts, before, strict=True):
                part.copy_(value)

    def _parameters(self) -> list[Tensor]:
        """Return the parameters of the block, and this rank's parts of those that are split."""
        parts = {id(s.parameter): s.part() for layer in self.layers for s in layer.states.values()}
        found = (parts.get(id(p), p) for p in self.block.module.parameters())
        return [part for part in found if part is not None]

    def _outcome(
        self,
        call: Callable[..., Any],
        leaves: list[Any],
        spec: Any,
        forward: AbstractContextManager[None] | None = None,
    ) -> Outcome:
        """Return outputs and gradients of a call in the context ``forward``.

        The backward pass is outside of it, as after the block: what the block has checkpointed in
        itself is computed again there.
        """
        leaves = [detached_copy(leaf) for leaf in leaves]
        inputs = [*(x for x in leaves if isinstance(x, Tensor)), *self._parameters()]
        args, kwargs = tree_unflatten(leaves, spec)
        with random_state.kept(), forward or nullcontext():
            outputs, output_spec = tree_flatten(call(*args, **kwargs))
        return Outcome.of(outputs, output_spec, inputs)
