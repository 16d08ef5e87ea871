"""The models of a cell, whose modules run on this rank's samples, while the cell sees all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.base import Unit
from nbmgpu.strategies.caching_configs import caching_configs
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.outermost_calls import OutermostCalls
from nbmgpu.strategies.replication import broadcast_unless_equal
from nbmgpu.strategies.sequence.held_outputs import HeldOutputs
from nbmgpu.strategies.sequence.sequence_tensor import SequenceTensor

from .batch_norm import patch_batch_norm
from .block import BatchBlock, whole_output
from .recomputation import CallContext, patch_checkpoint

FIRST_CALLS = 8
"""Calls of a model without an optimizer on the whole batch: a trial takes as long as some calls."""


class SplitModels:
    """All models of a cell: those that are given, and those that it calls again and again.

    Attributes:
        group: the ranks, in the order of their samples.
        calls: observes which models the cell calls.
        context: what decides how a call is split.
        has_models: whether there is a model.
        has_split: whether a module has run on some of the samples.
        on_whole: is told which module runs on the whole batch, and why.
        on_late: is told the same of one that has run on some of the samples until now.
        is_in_pass: whether a backward pass of the strategy runs.
    """

    def __init__(
        self,
        group: ProcessGroup,
        on_whole: Callable[[str, str], None],
        on_late: Callable[[str, str], None],
    ) -> None:
        """Start without models; observe calls from now on."""
        self.group = group
        self.calls = OutermostCalls(self._on_call)
        self.has_models = self.has_split = False
        self.on_whole = on_whole
        self.on_late = on_late
        self.is_in_pass = False
        self._patches = PatchStack()
        self._forwards = ForwardPatch()
        self._wrapped = WeakIdKeyDictionary()
        self.context = CallContext()
        self._met = WeakIdKeyDictionary()
        self._outputs = HeldOutputs()
        patch_batch_norm(self._patches)
        patch_checkpoint(self._patches, self.context)
        self.calls.install()

    def wrap(self, root: nn.Module) -> None:
        """Let the modules in ``root`` run on this rank's samples where that is right."""
        self.context.begin()
        for name, module in root.named_modules():
            if module in self._wrapped or type(module).forward is nn.Module.forward:
                continue
            block = BatchBlock(module, name, self)
            self._forwards.add(module, self.context.unless_later(block.forward))
            self._wrapped[module] = True
            self.has_models = True
        if caching := caching_configs(root):
            self._forwards.add(root, _without_cache(caching))

    def _on_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Wrap a model that the cell has called before, with or without an optimizer."""
        if module in self._wrapped:
            return
        count = self._met[module] = self._met.get(module, 0) + 1
        parameters = list(module.parameters()) if count == FIRST_CALLS else []
        if parameters and not any(map(is_lazy, parameters)):
            unit = Unit([module], [])
            broadcast_unless_equal([*unit.parameters(), *unit.buffers()], self.group)
            self.wrap(module)

    def returned(self, output: Any) -> Any:
        """Return a module's output: whole for the cell, and split for the next module."""
        if not self.context.depth:
            return whole_output(output)
        self._outputs.add([x for x in tree_leaves(output) if isinstance(x, SequenceTensor)])
        return output

    def gather_outputs(self) -> None:
        """Gather outputs that the cell still holds; collective."""
        self._outputs.gather()

    def drop(self) -> None:
        """Drop the models of earlier folds."""
        self._forwards.remove()
        self._met.clear()
        self._wrapped.clear()

    def remove(self) -> None:
        """Remove all wrappers and patches."""
        SequenceTensor.can_gather = False  # other ranks may have exited
        self.calls.remove()
        self._patches.remove()
        self.drop()


def _without_cache(configs: list[Any]) -> Callable[..., Any]:
    """Return a ``ForwardWrapper`` that calls a model, in training without keys and values.

    Models of Hugging Face fill a key-value cache in training, too.
    """

    def forward(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        caching = [c for c in configs if c.use_cache] if torch.is_grad_enabled() else []
        try:
            for config in caching:
                config.use_cache = False
            return call(*args, **kwargs)
        finally:
            for config in caching:
                config.use_cache = True

    return forward
