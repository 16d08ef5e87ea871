"""The strategies ``sp`` and ``cp``: each rank computes the layers for a slice of the sequence.

Parameters are replicated, and ranks hold the same samples.  The layers of a model run on slices;
what is outside of them (embeddings, loss, the cell itself) sees whole tensors, the same on all
ranks.  So the cell stays as it is, and activations inside of layers are 1/N.

Along ``dp``, gradients are averaged as under ``ddp``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.distributed import ProcessGroup

from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import RankContext, Unit
from nbmgpu.strategies.ddp import DistributedDataParallel
from nbmgpu.strategies.forward_patch import ForwardPatch
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.rnn_weights import keep_rnn_weights_in_place
from nbmgpu.strategies.sequence.block import BlockSettings
from nbmgpu.strategies.sequence.model_layers import ModelLayers
from nbmgpu.strategies.sequence.region import Exchange

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
        keep_rnn_weights_in_place()
        self._forwards = ForwardPatch()
        self._layers: ModelLayers | None = None

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
        if self._layers is None:
            settings = BlockSettings(name, group, self.exchange, self._notice_whole)
            # Along ``dp``, ranks weight losses by what their graphs say of them.
            self._layers = ModelLayers(settings, self._forwards, returns_whole=self.dp_size > 1)
        for module in (module for unit in units for module in unit.modules):
            self._layers.wrap(module)

    def _notice_whole(self, module: nn.Module, reason: str) -> None:
        if torch.is_grad_enabled():
            name, strategy = type(module).__name__, self.profile.name
            text = WHOLE.format(strategy=strategy, name=name, reason=reason)
            self.notice(f"whole-sequences-{name}", text)

    def finish(self) -> None:
        """Gather the outputs that the cell still holds, and say so if no layer was split."""
        if self._layers is not None:
            self._layers.gather_outputs()
            if self._layers.has_split_none():
                self.notice("no-sequence", NOTHING.format(strategy=self.profile.name))

    def release(self) -> None:
        """Remove all hooks and patches."""
        super().release()
        self._forwards.remove()
        if self._layers is not None:
            self._layers.remove()


class ContextParallel(SequenceParallel):
    """Layers on slices of the sequence; in attention, each rank has its own queries."""

    profile: ClassVar[Profile] = profiles.CP
    exchange: ClassVar[Exchange] = "keys"
