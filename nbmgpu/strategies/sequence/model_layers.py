"""The layers of models, which run on slices of the sequence, and what is around them.

The repeated layers of a model begin with slices; modules after them, such as the head, run on
slices where their argument is one.  What is outside of them (embeddings, loss, the cell itself)
sees whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.caching_configs import caching_configs
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.repeated_blocks import blocks

from .attention import attend_in_region, patch_attention
from .block import BlockSettings, SequenceBlock
from .dropout import patch_dropout
from .held_outputs import HeldOutputs
from .sequence_rows import OPERATIONS
from .sequence_tensor import SequenceTensor, whole_of


class ModelLayers:
    """The layers of all models of a cell."""

    def __init__(
        self, settings: BlockSettings, forwards: ForwardPatch, returns_whole: bool
    ) -> None:
        """Start without models.

        Args:
            settings: how their layers are split.
            forwards: the wrappers of forward passes, to which those of layers are added.
            returns_whole: whether models return whole tensors in training, too.
        """
        self._settings = settings
        self._forwards = forwards
        self._returns_whole = returns_whole
        self._patches = PatchStack()
        self._wrapped: WeakSet[nn.Module] = WeakSet()
        self._blocks: list[SequenceBlock] = []
        self._caching: list[Any] = []
        self._outputs = HeldOutputs()
        SequenceTensor.operations = OPERATIONS

    def wrap(self, root: nn.Module) -> None:
        """Let the layers in ``root`` run on slices, and everything else see whole tensors."""
        if root in self._wrapped:
            return
        if not self._patches:
            patch_attention(self._patches, attend_in_region)
            patch_dropout(self._patches)
        found = blocks(root) or [m for m in root.children() if any(True for _ in m.children())]
        inside = {m for block in found for m in block.modules()}
        for module in root.modules():
            if module in found or (
                module not in inside and not any(True for _ in module.children())
            ):
                block = SequenceBlock(module, self._settings, module in found)
                self._blocks.append(block)
                self._forwards.add(module, block.forward, traced=False)
            elif module not in inside and type(module).forward is not nn.Module.forward:
                self._forwards.add(module, with_whole, traced=False)
        self._caching += caching_configs(root)
        self._forwards.add(root, self._without_cache, traced=False)
        self._wrapped.add(root)

    def _without_cache(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a model, in training without keys and values; a ``ForwardWrapper``.

        Models of Hugging Face fill a key-value cache in training, too.
        """
        caching = [c for c in self._caching if c.use_cache] if torch.is_grad_enabled() else []
        try:
            for config in caching:
                config.use_cache = False
            return self._returned(call(*args, **kwargs))
        finally:
            for config in caching:
                config.use_cache = True

    def _returned(self, output: Any) -> Any:
        """Return a model's output to the cell: whole, or split up to the loss."""
        if self._returns_whole or not torch.is_grad_enabled():
            return tree_map(whole_of, output)
        split = [leaf for leaf in tree_leaves(output) if isinstance(leaf, SequenceTensor)]
        self._outputs.add(split)
        return output

    def gather_outputs(self) -> None:
        """Gather the outputs that the cell still holds; collective."""
        self._outputs.gather()

    def has_split_none(self) -> bool:
        """Whether there are layers, and none of them has run on slices."""
        return bool(self._blocks) and not any(block.has_run for block in self._blocks)

    def remove(self) -> None:
        """Remove the patches."""
        SequenceTensor.can_gather = False  # other ranks may have exited
        self._patches.remove()
        self._blocks.clear()


def with_whole(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward pass of a module outside of all layers; a ``ForwardWrapper``."""
    args, kwargs = tree_map(whole_of, (args, kwargs))
    return call(*args, **kwargs)
