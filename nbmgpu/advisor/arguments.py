"""Validates the arguments of ``advise``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import OptionError, format_message

if TYPE_CHECKING:
    from torch.optim import Optimizer


def check_types(model: Any, optimizer: Any) -> None:
    """Check that ``model`` is a module with known shapes, and ``optimizer`` an optimizer.

    Raises:
        OptionError: one of them is not.
    """
    import torch
    from torch.nn.parameter import is_lazy

    if not isinstance(model, torch.nn.Module):
        what = f"The model is a {type(model).__name__}, not a torch.nn.Module"
        raise OptionError(format_message(what, instead="nbmgpu.advise(model, optimizer, batch)"))
    if any(map(is_lazy, model.parameters())):
        what = "The model has lazy modules, whose shapes are unknown before a forward pass"
        instead = "model(x), and then nbmgpu.advise(model)"
        raise OptionError(format_message(what, instead=instead))
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        what = f"The optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer"
        raise OptionError(format_message(what, instead="nbmgpu.advise(model, optimizer=optimizer)"))


def resolve_batch(batch: Any, loader: Any) -> tuple[Any, int, str]:
    """Return an example batch, the batch size, and why there is none.

    Args:
        batch: a batch, ``(samples, tokens)``, a DataLoader, or None.
        loader: a DataLoader, or None.
    """
    from torch.utils.data import DataLoader

    from .forward_pass import batch_size
    from .sample_batch import NoBatchError, batch_from_loader, token_batch

    if isinstance(batch, DataLoader):
        batch, loader = None, batch
    if batch is not None:
        if isinstance(batch, tuple) and batch and all(type(size) is int for size in batch):
            batch = token_batch(batch)
        return batch, batch_size(batch), ""
    if loader is None:
        return None, 0, "no batch is known; give batch= or loader="
    try:
        sample, size = batch_from_loader(loader)
    except NoBatchError as error:
        return None, 0, str(error)
    return sample, size, ""


def unsupported_strategies(optimizer: Optimizer | None) -> Mapping[str, str]:
    """Return the strategies that do not support ``optimizer``, with the reasons."""
    if optimizer is None or any(p.is_meta for g in optimizer.param_groups for p in g["params"]):
        return {}  # the check steps on the parameters' device
    from nbmgpu.strategies.per_parameter import cross_parameter_dependence

    checks: dict[str, Callable[[Optimizer], str]] = {"zero1": cross_parameter_dependence}
    name = type(optimizer).__name__
    reasons = {strategy: check(optimizer) for strategy, check in checks.items()}
    return {strategy: f"does not support {name}: {why}" for strategy, why in reasons.items() if why}
