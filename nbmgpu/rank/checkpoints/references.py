"""Finds the objects that a checkpoint refers to by their path, as every run of the cell makes them.

Models, optimizers, loaders, datasets, functions and the like are not in a checkpoint themselves.
Where a value in it contains one, there is its path: ``model``, ``trainer.optimizer``, ``nets[0]``.
"""

from __future__ import annotations

import io
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
PER_RUN = (DataLoader, Dataset, Sampler, torch.Generator, types.GeneratorType, io.IOBase)
"""Types of objects that are not restored, or not by a state dict."""


def is_stateful(value: Any) -> bool:
    """Return whether a value has a state dict: a model, optimizer, scheduler or scaler."""
    kind = type(value)
    is_loader = isinstance(value, DataLoader)
    return not is_loader and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")


def is_reference(value: Any) -> bool:
    """Return whether a checkpoint contains the path of ``value`` instead of a copy."""
    return isinstance(value, (*CODE, *PER_RUN)) or is_stateful(value)


def find_references(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be reached from ``variables`` and is referred to, by its first path.

    Modules come before their children, parameters and buffers.  The order depends on the variables'
    names only.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    queue = deque((name, variables[name]) for name in sorted(variables))
    while queue:
        path, value = queue.popleft()
        if id(value) in seen or isinstance(
            value, (str, int, float, torch.Tensor, types.ModuleType)
        ):
            continue
        seen.add(id(value))
        if is_reference(value):
            found[path] = value
        for inner_path, inner in _parts(path, value):
            if not isinstance(inner, torch.Tensor):
                queue.append((inner_path, inner))
            elif isinstance(value, nn.Module | Optimizer) and id(inner) not in seen:
                seen.add(id(inner))
                found[inner_path] = inner
    return found


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what ``value`` contains that may be referred to, or may contain that."""
    if isinstance(value, nn.Module):
        for name, parameter in value.named_parameters(remove_duplicate=False):
            yield f"{path}.{name}", parameter
        for name, buffer in value.named_buffers(remove_duplicate=False):
            yield f"{path}.{name}", buffer
        for name, child in value.named_children():
            yield f"{path}.{name}", child
    elif isinstance(value, Optimizer):
        for at, group in enumerate(value.param_groups):
            for number, parameter in enumerate(group["params"]):
                yield f"{path}.param_groups[{at}][{number}]", parameter
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{path}[{at}]", item) for at, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, CODE):
        return
    elif is_stateful(value) or isinstance(value, DataLoader) or _is_of_notebook(value):
        attributes = getattr(value, "__dict__", {})
        yield f"{path}.__class__", type(value)
        yield from ((f"{path}.{name}", attributes[name]) for name in sorted(attributes))


def _is_of_notebook(value: Any) -> bool:
    return type(value).__module__ == "__main__"
