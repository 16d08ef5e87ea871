"""Finds the optimizers of a process, and the modules that own their parameters."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.base import Unit


class OptimizerRegistry:
    """Every optimizer of this process, wherever it was made or unpickled.

    Attributes:
        order: the optimizers, in order of appearance.
        changed: whether an optimizer has appeared or got a new parameter group since the last
            call of ``units``.
        on_class: called with the class of each new optimizer.
    """

    def __init__(self) -> None:
        """Register nothing until ``install``."""
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.order: list[weakref.ref[Optimizer]] = []
        self.changed = False
        self.on_class: Callable[[type[Optimizer]], None] = lambda cls: None
        self._baseline = 0

    def install(self) -> None:
        """Patch the creation, unpickling and extension of optimizers."""
        for method in ("__init__", "__setstate__", "add_param_group"):
            PatchStack().wrap(f"torch.optim.Optimizer.{method}", self._registering)

    def _registering(self, function: Any) -> Any:
        @functools.wraps(function)
        def registered(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = function(optimizer, *args, **kwargs)
            if hasattr(optimizer, "of_engine"):  # a strategy's own, for one of the cell
                return result
            if optimizer not in self._seen:
                self.on_class(type(optimizer))
                self._seen.add(optimizer)
                self.order.append(weakref.ref(optimizer))
            self.changed = True
            return result

        return registered

    @property
    def has_doubled(self) -> bool:
        """Whether there are twice as many as when this was first read, or after ``prune``."""
        self._baseline = self._baseline or max(len(self.order), 1)
        return len(self.order) >= 2 * self._baseline

    def prune(self, agree: Callable[[torch.Tensor], Any]) -> list[Optimizer]:
        """Remove optimizers that are dead on any rank, and return the others.

        An optimizer that the code cannot reach on one rank is unreachable on all, even where the
        garbage collector has not run yet.  Keep the result until ``units`` has been called, so
        that none of them dies before.

        Args:
            agree: sets flags of shape (n,), in place, to those that are 1 on all ranks.
        """
        dead = sum(ref() is None for ref in self.order)
        if 2 * dead < len(self.order):
            gc.collect()  # a scheduler and its optimizer refer to each other
        held = [ref() for ref in self.order]
        alive = torch.tensor([float(optimizer is not None) for optimizer in held])
        agree(alive)
        self.order = list(itertools.compress(self.order, alive.tolist()))
        self._baseline = max(len(self.order), 1)
        return [each for each in itertools.compress(held, alive.tolist()) if each is not None]

    def forget(self, optimizers: Iterable[Optimizer]) -> None:
        """Remove optimizers that will not step any more, although they are alive."""
        known = {id(optimizer) for optimizer in optimizers}
        self.order = [ref for ref in self.order if id(ref()) not in known]
        self.changed = True

    def optimizers(self) -> list[Optimizer]:
        """Return the live optimizers that have parameters, in order of appearance.

        A wrapper that has the parameter groups of another optimizer is one of them.
        """
        alive = [o for ref in self.order if (o := ref()) is not None]
        return [o for o in alive if any(g["params"] for g in getattr(o, "param_groups", []))]

    def units(self) -> list[Unit]:
        """Group optimizers and the outermost modules that own what they update."""
        self.changed = False
        return self.peek()

    def peek(self) -> list[Unit]:
        """Return the result of ``units`` without resetting ``changed``."""
        optimizers = self.optimizers()
        return group_units(optimizers, owners(optimizers))


def owners(optimizers: Iterable[Optimizer]) -> list[nn.Module]:
    """Return the outermost modules that have a parameter of ``optimizers``, in their order.

    All objects of the process are searched, so a module may be in a function's frame or in an
    attribute as well as in the notebook's namespace.  ``gc`` lists objects by generation, which
    is not the same order on all ranks.
    """
    parameters = (p for o in optimizers for g in o.param_groups for p in g["params"])
    wanted = {id(p): at for at, p in reversed([*enumerate(parameters)])}
    modules = [x for x in gc.get_objects() if issubclass(type(x), nn.Module)]
    whole = [m for m in modules if "_parameters" in m.__dict__]  # not one being built
    holding = [m for m in whole if any(id(p) in wanted for p in m.parameters())]
    inner = {id(child) for m in holding for child in m.modules() if child is not m}
    outermost = [m for m in holding if id(m) not in inner]
    return sorted(
        outermost, key=lambda m: [wanted[id(p)] for p in m.parameters() if id(p) in wanted]
    )


def group_units(optimizers: list[Optimizer], modules: list[nn.Module]) -> list[Unit]:
    """Group objects that share a parameter into units, in the order of the optimizers."""
    parts: list[tuple[set[int], Unit]] = []
    for optimizer in optimizers:
        keys = {id(p) for g in optimizer.param_groups for p in g["params"]}
        parts.append((keys, Unit([], [optimizer])))
    for module in modules:
        parts.append(({id(p) for p in module.parameters()}, Unit([module], [])))
    joined: list[tuple[set[int], Unit]] = []
    for keys, unit in parts:
        touching = [entry for entry in joined if entry[0] & keys]
        for entry in touching[1:]:
            joined.remove(entry)
        if not touching:
            joined.append((keys, unit))
            continue
        first_keys, first = touching[0]
        for other_keys, other in [*touching[1:], (keys, unit)]:
            first_keys |= other_keys
            first.modules += other.modules
            first.optimizers += other.optimizers
    return [unit for _, unit in joined if unit.optimizers]


def training(units: Iterable[Unit]) -> bool:
    """Return whether gradients are enabled and some module of ``units`` is in training mode.

    A unit without modules (an optimizer over bare tensors) counts as training.
    """
    return torch.is_grad_enabled() and any(
        not unit.modules or any(m.training for m in unit.modules) for unit in units
    )
