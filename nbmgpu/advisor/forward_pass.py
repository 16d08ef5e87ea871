"""Calls a model with a batch, and computes a loss, as training cells commonly do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def batch_size(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor."""
    values = dict(batch) if isinstance(batch, Mapping) else batch
    sizes = [int(t.shape[0]) for t in tree_leaves(values) if isinstance(t, Tensor) and t.dim()]
    return sizes[0] if sizes else 1


def call_model(model: Any, batch: Any) -> tuple[Any, Any]:
    """Call ``model`` with ``batch``; return its output and the targets.

    A Lightning module runs a training step.  A mapping is passed as keyword arguments.  Of
    several tensors the last is the target and the others are inputs, unless the model takes
    all of them.
    """
    if hasattr(model, "training_step") and hasattr(model, "configure_optimizers"):
        model.log = model.log_dict = lambda *_, **__: None
        return model.training_step(batch, 0), None
    if isinstance(batch, Mapping):
        return model(**batch), batch.get("labels")
    if not isinstance(batch, list | tuple):
        return model(batch), None
    if len(batch) == 1:
        return model(batch[0]), None
    try:
        return model(*batch[:-1]), batch[-1]
    except TypeError:
        return model(*batch), None


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors inside ``value``, which may be a model output of transformers."""
    values = dict(value) if isinstance(value, Mapping) else value
    return [t for t in tree_leaves(values) if isinstance(t, Tensor)]


def compute_loss(output: Any, targets: Any) -> Tensor:
    """Return the model's own loss, else cross entropy or squared errors.

    Raises:
        ValueError: the output does not depend on trainable parameters.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    tensors = [t for t in tensors_in(output) if t.requires_grad]
    if not tensors:
        raise ValueError("the output does not depend on any trainable parameter")
    first = tensors[0].float()
    if isinstance(targets, Tensor) and first.dim() > 0:
        if not targets.is_floating_point() and first.dim() == targets.dim() + 1:
            if first.dim() > 2 and first.shape[:-1] == targets.shape:  # classes come last
                first, targets = first.flatten(0, -2), targets.flatten()
            return nn.functional.cross_entropy(first, targets.long())
        if first.shape == targets.shape:
            return nn.functional.mse_loss(first, targets.float())
    return torch.stack([t.float().square().mean() for t in tensors]).sum()
