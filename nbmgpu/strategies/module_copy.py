"""Copies of modules for trials, and what a call of one changes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def copy_for_trial(module: nn.Module) -> nn.Module:
    """Return a copy of ``module``, without hooks of the cell, and with gates that are open.

    A parameter that is zero, as at the start of ReZero, would hide that samples or positions meet.

    Raises:
        Exception: what ``copy.deepcopy`` raises.
    """
    memo: dict[int, Any] = {}
    for each in module.modules():
        for value in vars(each).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # from an earlier call
                memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(module, memo)
    for each in copied.modules():
        for hooks, key in hooks_of_cell(each):
            del hooks[key]
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.numel() and not parameter.any():
                parameter.fill_(0.1)
    return copied


def hooks_of_cell(module: nn.Module) -> list[tuple[dict[int, Any], int]]:
    """Return the forward hooks on ``module`` that are the cell's: their dict, and their key."""
    libraries = ("torch.nn.utils", "transformers.")  # weight_norm; recorders that are off
    return [
        (hooks, key)
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for key, hook in hooks.items()
        if not str(getattr(hook, "__module__", type(hook).__module__)).startswith(libraries)
    ]


def plain_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the numbers and strings among the attributes of all modules in ``module``."""
    return [
        (f"{number}.{name}", value)
        for number, each in enumerate(module.modules())
        for name, value in vars(each).items()
        if isinstance(value, bool | int | float | str)
    ]


class ModuleState:
    """What a module holds besides its parameters, to find out whether a call changes it."""

    def __init__(self, module: nn.Module) -> None:
        """Copy the buffers of ``module``, and the attributes of all modules in it."""
        self._buffers = [(name, buffer.clone()) for name, buffer in module.named_buffers()]
        self._attributes = plain_attributes(module)
        self._objects = _objects_of(module)

    def is_that_of(self, module: nn.Module) -> bool:
        """Whether ``module`` is as it was."""
        buffers = list(module.named_buffers())
        return (
            len(buffers) == len(self._buffers)
            and all(
                name == before and torch.equal(value, kept)
                for (name, value), (before, kept) in zip(buffers, self._buffers, strict=True)
            )
            and plain_attributes(module) == self._attributes
            and _ids(_objects_of(module)) == _ids(self._objects)
        )


def _objects_of(module: nn.Module) -> list[tuple[str, Any]]:
    """Return all other attributes of the modules in ``module``; they are kept alive meanwhile."""
    return [
        (f"{number}.{name}", value)
        for number, each in enumerate(module.modules())
        for name, value in vars(each).items()
        if not isinstance(value, bool | int | float | str)
    ]


def _ids(attributes: list[tuple[str, Any]]) -> list[tuple[str, int, int]]:
    """Return what differs when an attribute is replaced, or a list among them has grown."""
    return [
        (name, id(value), len(value) if isinstance(value, list | dict | set) else 0)
        for name, value in attributes
    ]
