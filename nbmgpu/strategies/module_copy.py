"""Modules in trials: copies, open gates, and what a call changes."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

CLOSED = 1e-2
"""Magnitude below which all elements of a parameter that is a closed gate are."""

OPEN = 0.1
"""Standard deviation of a gate's elements in a trial; equal ones might cancel each other."""


def copy_for_trial(module: nn.Module) -> nn.Module:
    """Return a copy of ``module``, without hooks of the cell, and with gates that are open.

    Raises:
        Exception: what ``copy.deepcopy`` raises.
    """
    memo: dict[int, Any] = {}
    for each in module.modules():
        for value in vars(each).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # from an earlier call
                memo[id(value)] = value.detach().clone()
        for value in each._parameters.values():
            if value is not None and not value.is_leaf:  # those of torch.func.functional_call
                memo[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
    copied = copy.deepcopy(module, memo)
    for each in copied.modules():
        for hooks, key in hooks_of_cell(each):
            del hooks[key]
    _open(closed_gates(copied.parameters()))
    return copied


def closed_gates(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters that are zero or tiny, as at the start of ReZero or in LayerScale.

    What is behind such a parameter contributes no more to outputs and gradients than rounding, so a
    trial would not see that samples, positions or features meet there.
    """
    return [
        p
        for p in parameters
        if p.is_floating_point() and p.numel() and float(p.detach().abs().max()) < CLOSED
    ]


@contextmanager
def open_gates(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Open the gates among ``parameters`` for the body, without a new version of the tensors."""
    gates = closed_gates(parameters)
    before = [gate.data.clone() for gate in gates]
    _open(gates)
    try:
        yield
    finally:
        for gate, value in zip(gates, before, strict=True):
            gate.data.copy_(value)


def _open(gates: list[Tensor]) -> None:
    """Fill ``gates`` with random numbers, the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    for gate in gates:
        gate.data.copy_(OPEN * torch.randn(gate.shape, generator=generator))


def hooks_of_cell(module: nn.Module) -> list[tuple[dict[int, Any], int]]:
    """Return the forward hooks on ``module`` that are the cell's: their dict, and their key."""
    libraries = ("torch.nn.utils", "transformers.")  # weight_norm; recorders that are off
    return [
        (hooks, key)
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for key, hook in hooks.items()
        if not str(getattr(hook, "__module__", type(hook).__module__)).startswith(libraries)
    ]


def has_hooks(module: nn.Module) -> bool:
    """Whether ``module`` has a hook that sees its input, its output, or their gradients."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


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
            and self.has_objects_of(module)
        )

    def has_objects_of(self, module: nn.Module) -> bool:
        """Whether ``module`` has the same objects as attributes, besides numbers and strings."""
        return _ids(_objects_of(module)) == _ids(self._objects)


@contextmanager
def kept_module_state(module: nn.Module) -> Iterator[None]:
    """Let the body call a module, and restore its buffers and the attributes of all modules."""
    attributes = [(vars(each), dict(vars(each))) for each in module.modules()]
    contents = [
        (value, copy.copy(value))
        for _, kept in attributes
        for value in kept.values()
        if type(value) in (list, dict, set, OrderedDict)
    ]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for shown, kept in attributes:
            shown.clear()
            shown.update(kept)
        for value, items in contents:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(items)
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


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
