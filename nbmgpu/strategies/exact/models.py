"""The models of a cell, whose modules run on this rank's samples, while the cell sees all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.caching_configs import caching_configs
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.sequence.held_outputs import HeldOutputs
from nbmgpu.strategies.sequence.sequence_tensor import SequenceTensor

from .batch_norm import patch_batch_norm
from .block import BatchBlock, whole_output
from .recomputation import patch_checkpoint


class SplitModels:
    """All models of a cell.

    Attributes:
        group: the ranks, in the order of their samples.
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
        """Start without models."""
        self.group = group
        self.on_whole = on_whole
        self.on_late = on_late
        self.is_in_pass = False
        self._depth = 0
        self._patches = PatchStack()
        self._forwards = ForwardPatch()
        self._wrapped: WeakSet[nn.Module] = WeakSet()
        self._blocks: list[BatchBlock] = []
        self._outputs = HeldOutputs()

    def wrap(self, root: nn.Module) -> None:
        """Let the modules in ``root`` run on this rank's samples where that is right."""
        if not self._patches:
            patch_batch_norm(self._patches)
            patch_checkpoint(self._patches)
        for name, module in root.named_modules():
            if module in self._wrapped or type(module).forward is nn.Module.forward:
                continue
            block = BatchBlock(module, name, self)
            self._blocks.append(block)
            self._forwards.add(module, block.forward)
            self._wrapped.add(module)
        if caching := caching_configs(root):
            self._forwards.add(root, _without_cache(caching))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let the body be in the forward pass of a module that sees the whole batch."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def returned(self, output: Any) -> Any:
        """Return a module's output: whole for the cell, and split for the next module."""
        if not self._depth:
            return whole_output(output)
        self._outputs.add([x for x in tree_leaves(output) if isinstance(x, SequenceTensor)])
        return output

    def has_split_none(self) -> bool:
        """Whether there are models, and no module has run on some of the samples."""
        return bool(self._blocks) and not any(block.has_run for block in self._blocks)

    def gather_outputs(self) -> None:
        """Gather outputs that the cell still holds; collective."""
        self._outputs.gather()

    def drop(self) -> None:
        """Drop the models of earlier folds."""
        self._forwards.remove()
        self._blocks.clear()
        self._wrapped.clear()

    def remove(self) -> None:
        """Remove all wrappers and patches."""
        SequenceTensor.can_gather = False  # other ranks may have exited
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
