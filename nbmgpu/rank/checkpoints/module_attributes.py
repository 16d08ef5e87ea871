"""What a module has besides its state dict: its mode, frozen parameters, and plain attributes.

A loop changes them in some iterations only (it unfreezes layers in the third epoch, counts in
``self.seen``), and a resumed cell skips those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from .in_place import InPlaceUpdate
from .references import is_reference

ATTRIBUTES = "attributes:"
"""Stands for the attributes of all modules among the variables of a checkpoint; no variable."""

OF_TORCH = frozenset(vars(nn.Module())) - {"training"}


def module_attributes(
    references: Mapping[str, Any], is_picklable: Callable[[Any], bool]
) -> dict[str, Any]:
    """Return the attributes of modules, and whether parameters require gradients, by path."""
    found: dict[str, Any] = {}
    for path, value in references.items():
        if isinstance(value, nn.Parameter):
            found[path] = value.requires_grad
        elif isinstance(value, nn.Module):
            own = _own_attributes(value)
            found[path] = {name: each for name, each in own.items() if is_picklable(each)}
    return found


def restore_module_attributes(
    found: Mapping[str, Any], references: Mapping[str, Any], update: InPlaceUpdate
) -> None:
    """Set what ``module_attributes`` has returned.

    Raises:
        KeyError: there is no object with one of the paths.
    """
    for path, saved in found.items():
        value = references[path]
        if not isinstance(value, nn.Module):
            value.requires_grad_(saved)
            continue
        live = vars(value)
        live.update({name: update(live.get(name), each) for name, each in saved.items()})


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the mode of a module, and plain attributes if its class is the notebook's."""
    if not any(kind.__module__ == "__main__" for kind in type(module).__mro__):
        return {"training": module.training}
    return {
        name: value
        for name, value in vars(module).items()
        if name not in OF_TORCH and not (callable(value) or is_reference(value))
    }
