"""Recurrent networks, which have a list of their parameters besides the registered ones."""

from __future__ import annotations

from torch import nn


def update_rnn_weights(module: nn.Module) -> None:
    """Let the recurrent networks in ``module`` compute with the parameters registered now."""
    for each in module.modules():
        if isinstance(each, nn.RNNBase):
            names = each._flat_weights_names
            each._flat_weights = [each._parameters.get(name) for name in names]
