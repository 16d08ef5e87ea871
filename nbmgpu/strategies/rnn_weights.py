"""Recurrent networks, which have a list of their parameters besides the registered ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import nn

from nbmgpu.patches import PatchStack


def update_rnn_weights(modules: Iterable[nn.Module]) -> None:
    """Let the recurrent networks among ``modules`` compute with the parameters registered now."""
    for each in modules:
        if isinstance(each, nn.RNNBase):
            names = each._flat_weights_names
            each._flat_weights = [each._parameters.get(name) for name in names]


def keep_rnn_weights_in_place() -> None:
    """Let recurrent networks of this process compute with parameters where they are.

    On a GPU, ``flatten_parameters()`` moves them into one block for cuDNN, also when other
    parameters are registered.  A strategy that replaces parameters, or holds them in memory of its
    own, would then go on with the old memory.  cuDNN copies them at each call instead.
    """
    PatchStack().replace("torch.nn.RNNBase.flatten_parameters", _leave_in_place)
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _leave_in_place(module: nn.RNNBase) -> None:
    pass
