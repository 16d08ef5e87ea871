"""Differences between what one device and ranks leave: models, optimizers, numbers, containers."""

from __future__ import annotations

from collections import deque
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, DataLoader, Dataset, Sampler)
"""Types whose objects are not compared."""


class Differences:
    """Collects the differences of pairs of objects, and of all that these contain.

    Attributes:
        found: one line for each difference that exceeds the tolerances.
        error: the largest absolute difference of two numbers, also within the tolerances.
    """

    def __init__(self, rtol: float = 1e-5, atol: float = 1e-6) -> None:
        self.rtol, self.atol = rtol, atol
        self.found: list[str] = []
        self.error = 0.0
        self._visited: dict[tuple[int, int], object] = {}  # keeps objects, so that ids stay unique

    def compare(self, path: str, a: Any, b: Any) -> None:
        """Compare ``a`` of one device with ``b`` of ranks; ``path`` names them in messages."""
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            a, b = _array(a), _array(b)
        if isinstance(a, int | float) and type(a) is type(b) and a == b:
            return  # of hundreds of numbers in the state of a generator, without NumPy
        if type(a).__name__ != type(b).__name__:
            self.found.append(f"{path}: {type(a)} on one device, {type(b)} on ranks")
        elif isinstance(a, np.ndarray | np.generic | float | int) and not isinstance(a, bool):
            self._compare_numbers(path, np.asarray(a), np.asarray(b))
        elif isinstance(a, str | bool | bytes | None | set | frozenset | PurePath):
            if a != b:
                self.found.append(f"{path}: {a!r} on one device, {b!r} on ranks")
        elif (id(a), id(b)) not in self._visited:
            self._visited[id(a), id(b)] = a, b
            self._compare_parts(path, a, b)

    def _compare_parts(self, path: str, a: Any, b: Any) -> None:
        if isinstance(a, list | tuple | deque):
            if len(a) != len(b):
                self.found.append(f"{path}: {len(a)} items on one device, {len(b)} on ranks")
            for i, (x, y) in enumerate(zip(a, b, strict=False)):
                self.compare(f"{path}[{i}]", x, y)
        elif isinstance(a, dict):
            if list(a) != list(b):
                self.found.append(f"{path}: keys {list(a)} on one device, {list(b)} on ranks")
            for key in a.keys() & b.keys():
                self.compare(f"{path}[{key!r}]", a[key], b[key])
        else:
            mine, theirs = _parts(a), _parts(b)
            self._visited[id(mine), id(theirs)] = mine, theirs
            for key in mine:
                if key in theirs:
                    self.compare(f"{path}.{key}", mine[key], theirs[key])
                else:
                    self.found.append(f"{path}: no {key} on ranks")

    def _compare_numbers(self, path: str, a: Any, b: Any) -> None:
        if a.dtype.kind not in "biufc":
            return
        if a.shape != b.shape:
            self.found.append(f"{path}: shape {a.shape} on one device, {b.shape} on ranks")
            return
        if np.array_equal(a, b):
            return
        largest = _largest_difference(a, b)
        exact = a.dtype.kind in "biu"  # counts, and states of generators
        if not np.allclose(a, b, *((0, 0) if exact else (self.rtol, self.atol)), equal_nan=True):
            values = f"{a} on one device, {b} on ranks"
            self.found.append(f"{path}: {values if a.size == 1 else f'{largest:.1e} apart'}")
        self.error = max(self.error, largest)


def difference(a: Any, b: Any) -> float:
    """Return the largest difference of two numbers at the same place of ``a`` and ``b``.

    Of models and optimizers, only the weights and states are compared.
    """
    if isinstance(a, nn.Module):
        a, b = dict(a.state_dict()), dict(b.state_dict())
    if isinstance(a, torch.optim.Optimizer):
        a, b = a.state_dict()["state"], b.state_dict()["state"]
    differences = Differences(rtol=0.0, atol=1e300)
    differences.compare("", a, b)
    assert not differences.found, "\n".join(differences.found)
    return differences.error


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return (dense.double() if dense.is_floating_point() else dense).numpy()


def _largest_difference(a: Any, b: Any) -> float:
    wide = complex if a.dtype.kind == "c" else float
    gaps = np.abs(np.nan_to_num(a.astype(wide)) - np.nan_to_num(b.astype(wide)))
    return float(gaps.max()) if gaps.size else 0.0


def _parts(value: Any) -> dict[str, Any]:
    """Return the parts of an object that can be compared."""
    if isinstance(value, nn.Module):
        parameters = dict(value.named_parameters())
        return {
            "state_dict()": dict(value.state_dict()),
            "grads": {name: p.grad for name, p in parameters.items() if p.grad is not None},
            "requires_grad": {name: p.requires_grad for name, p in parameters.items()},
            "training": value.training,
        }
    if isinstance(value, torch.optim.Optimizer | torch.amp.GradScaler):
        return {"state_dict()": value.state_dict()}
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        plain = (int, float, str, bool, list, dict, type(None))
        state = value.state_dict()
        return {"state_dict()": {k: v for k, v in state.items() if isinstance(v, plain)}}
    if isinstance(value, OPAQUE) or type(value).__module__ != "__main__":
        return {}
    return {key: part for key, part in vars(value).items() if not isinstance(part, OPAQUE)}
