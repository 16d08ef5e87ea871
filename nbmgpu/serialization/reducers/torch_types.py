"""Reducers for types of torch."""

from __future__ import annotations

import copyreg
import pickle
from typing import Any


def reduce_loader(loader: Any) -> Any:
    """Omit the active iterator of a DataLoader, which has worker processes."""
    if loader._iterator is None:
        return None
    function, args, state, *rest = loader.__reduce_ex__(4)
    return function, args, {**state, "_iterator": None}, *rest  # worker processes cannot be sent


REBUILT_OPTIMIZER_ATTRIBUTES = ("step", "_zero_grad_profile_name")
"""Attributes that a scheduler or ``__init__`` sets on an optimizer and can set again."""


def reduce_optimizer(optimizer: Any) -> Any:
    """Reduce an optimizer to its attributes, without those that can be set again."""
    if not _has_torch_getstate(optimizer):
        return None
    state = {k: v for k, v in optimizer.__dict__.items() if k not in REBUILT_OPTIMIZER_ATTRIBUTES}
    return copyreg.__newobj__, (type(optimizer),), state  # type: ignore[attr-defined]


def _has_torch_getstate(optimizer: Any) -> bool:
    """Return whether an optimizer uses torch's ``__getstate__``, which omits additional attributes.

    LBFGS and user-defined optimizers have additional attributes.
    """
    import torch

    own: Any = type(optimizer).__getstate__
    return own is torch.optim.Optimizer.__getstate__


def refuse_distributed(tensor: Any) -> None:
    """Raise PicklingError for a DTensor, whose parts are on several ranks."""
    if hasattr(tensor, "device_mesh") and hasattr(tensor, "full_tensor"):
        raise pickle.PicklingError(
            "it is a DTensor, of which each rank has a part: end the cell with full_tensor() of "
            "it, or with whole = {k: v.full_tensor() for k, v in model.state_dict().items()}"
        )


def reduce_module(module: Any) -> Any:
    """Reduce a parametrized module, whose own ``__getstate__`` raises."""
    from torch.nn.utils.parametrize import is_parametrized

    if not is_parametrized(module):
        return None
    return copyreg.__newobj__, (type(module),), dict(module.__dict__)  # type: ignore[attr-defined]


def leaf_spec() -> Any:
    """Create the tree spec that Lightning keeps per loader; torch deprecates ``LeafSpec()``."""
    from torch.utils._pytree import tree_structure  # private, but Lightning uses it too

    return tree_structure(0)
