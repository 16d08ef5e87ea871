"""The strategies ``sp`` and ``cp``: each rank computes the layers for a slice of the sequence.

Parameters are replicated, and ranks hold the same samples.  The layers of a model run on slices;
what is outside of them (embeddings, loss, the cell itself) sees whole tensors, the same on all
ranks.  So the cell stays as it is, and activations inside of layers are 1/N.

Along ``dp``, gradients are averaged as under ``ddp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves, tree_map

from nbmgpu.patches import PatchStack
from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import RankContext, Unit
from nbmgpu.strategies.caching_configs import caching_configs
from nbmgpu.strategies.ddp import DistributedDataParallel
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.repeated_blocks import blocks

from .attention import attend_in_region, patch_attention
from .block import BlockSettings, SequenceBlock
from .dropout import patch_dropout
from .held_outputs import HeldOutputs
from .region import Exchange
from .sequence_rows import OPERATIONS
from .sequence_tensor import SequenceTensor, whole_of

WHOLE = (
    "{strategy}: layers of class {name} run on whole sequences on every rank, which is right and "
    "saves nothing: {reason}. Layers are split whose attention is scaled_dot_product_attention "
    '(attn_implementation="sdpa" in Hugging Face\'s models), and that treat each position alike '
    "otherwise."
)

NOTHING = (
    "{strategy} has split no layer: none was called with a tensor of shape (batch, sequence, "
    "features). Every rank has computed everything. Try: %%mgpu --strategy ddp"
)


class SequenceParallel(DistributedDataParallel):
    """Layers on slices of the sequence; in attention, each rank has some of the heads."""

    profile: ClassVar[Profile] = profiles.SP
    exchange: ClassVar[Exchange] = "heads"

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._forwards = ForwardPatch()
        self._patches = PatchStack()
        self._wrapped: WeakSet[nn.Module] = WeakSet()
        self._blocks: list[SequenceBlock] = []
        self._caching: list[Any] = []
        self._outputs = HeldOutputs()
        SequenceTensor.operations = OPERATIONS

    @property
    def replica_group(self) -> ProcessGroup | None:
        """All ranks have the same parameters."""
        return None

    def prepare(self, units: list[Unit]) -> None:
        """Give all ranks the values of rank 0, hook the parameters, and wrap the layers."""
        super().prepare(units)
        name = self.profile.name
        group = self.mesh.get_group(name)
        if group.size() == 1:
            return
        if not self._patches:
            patch_attention(self._patches, attend_in_region)
            patch_dropout(self._patches)
        settings = BlockSettings(name, group, self.exchange, self._notice_whole)
        for module in (module for unit in units for module in unit.modules):
            if module not in self._wrapped:
                self._wrap(module, settings)

    def _wrap(self, root: nn.Module, settings: BlockSettings) -> None:
        """Let the layers in ``root`` run on slices, and everything else see whole tensors."""
        found = blocks(root) or [m for m in root.children() if any(True for _ in m.children())]
        inside = {m for block in found for m in block.modules()}
        for module in root.modules():
            if module in found or (
                module not in inside and not any(True for _ in module.children())
            ):
                block = SequenceBlock(module, settings, module in found)
                self._blocks.append(block)
                self._forwards.add(module, block.forward)
            elif module not in inside and type(module).forward is not nn.Module.forward:
                self._forwards.add(module, with_whole)
        self._caching += caching_configs(root)
        self._forwards.add(root, self._without_cache)
        self._wrapped.add(root)

    def _without_cache(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a model, in training without keys and values, and return whole tensors.

        A ``ForwardWrapper``.  Models of Hugging Face fill a key-value cache in training, too.
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
        """Return a model's output to the cell: whole, or split up to the loss.

        Along ``dp``, ranks weight losses by what their graphs say of them, so these are of whole
        tensors.
        """
        if self.dp_size > 1 or not torch.is_grad_enabled():
            return tree_map(whole_of, output)
        split = [leaf for leaf in tree_leaves(output) if isinstance(leaf, SequenceTensor)]
        self._outputs.add(split)
        return output

    def _notice_whole(self, module: nn.Module, reason: str) -> None:
        if torch.is_grad_enabled():
            name, strategy = type(module).__name__, self.profile.name
            text = WHOLE.format(strategy=strategy, name=name, reason=reason)
            self.notice(f"whole-sequences-{name}", text)

    def finish(self) -> None:
        """Gather the outputs that the cell still holds, and say so if no layer was split."""
        self._outputs.gather()
        if self._blocks and not any(block.has_run for block in self._blocks):
            self.notice("no-sequence", NOTHING.format(strategy=self.profile.name))

    def release(self) -> None:
        """Remove all hooks and patches."""
        super().release()
        SequenceTensor.can_gather = False  # other ranks may have exited
        self._forwards.remove()
        self._patches.remove()
        self._blocks.clear()


class ContextParallel(SequenceParallel):
    """Layers on slices of the sequence; in attention, each rank has its own queries."""

    profile: ClassVar[Profile] = profiles.CP
    exchange: ClassVar[Exchange] = "keys"


def with_whole(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward pass of a module outside of all layers; a ``ForwardWrapper``."""
    args, kwargs = tree_map(whole_of, (args, kwargs))
    return call(*args, **kwargs)
