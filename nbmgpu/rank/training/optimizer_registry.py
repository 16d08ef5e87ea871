"""Which objects train: optimizers as they appear, and the modules that own their parameters."""

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


class OptimizerWatch:
    """Knows every optimizer of this process, wherever it was made or unpickled.

    ``changed`` is set when one appears or gets a new parameter group, until
    ``units`` is asked for.  ``on_class`` is called with the class of each.
    """

    def __init__(self) -> None:
        """See nothing until ``install``."""
        self.seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.order: list[weakref.ref[Optimizer]] = []
        self.changed = False
        self.on_class: Callable[[type[Optimizer]], None] = lambda cls: None
        self._few = 0

    def install(self) -> None:
        """Hook the creation, unpickling and growth of optimizers."""
        for method in ("__init__", "__setstate__", "add_param_group"):
            PatchStack().wrap(f"torch.optim.Optimizer.{method}", self._noting)

    def _noting(self, function: Any) -> Any:
        @functools.wraps(function)
        def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = function(optimizer, *args, **kwargs)
            if hasattr(optimizer, "of_engine"):  # a strategy's own, behind one of the cell
                return result
            if optimizer not in self.seen:
                self.on_class(type(optimizer))
                self.seen.add(optimizer)
                self.order.append(weakref.ref(optimizer))
            self.changed = True
            return result

        return noted

    @property
    def has_doubled(self) -> bool:
        """Whether there are twice as many as when that was asked first, or after ``prune``."""
        self._few = self._few or max(len(self.order), 1)
        return len(self.order) >= 2 * self._few

    def prune(self, agree: Callable[[torch.Tensor], Any]) -> list[Optimizer]:
        """Leave out those that are gone on any rank; ``agree`` keeps the flags that all ranks have.

        What the code cannot reach any more on one rank, it cannot on another, where the collector
        has not come by yet.  Those that are left are returned: until ``units`` has been asked, none
        of them may go.
        """
        gone = sum(ref() is None for ref in self.order)
        if 2 * gone < len(self.order):
            gc.collect()  # a scheduler and its optimizer hold one another
        held = [ref() for ref in self.order]
        alive = torch.tensor([float(optimizer is not None) for optimizer in held])
        agree(alive)
        self.order = list(itertools.compress(self.order, alive.tolist()))
        self._few = max(len(self.order), 1)
        return [each for each in itertools.compress(held, alive.tolist()) if each is not None]

    def forget(self, gone: Iterable[Optimizer]) -> None:
        """Leave out optimizers that will not step any more, though something keeps them."""
        known = {id(optimizer) for optimizer in gone}
        self.order = [ref for ref in self.order if id(ref()) not in known]
        self.changed = True

    def optimizers(self) -> list[Optimizer]:
        """Return the live optimizers that have parameters, in order of appearance.

        A wrapper that shares the groups of another one counts with it.
        """
        alive = [o for ref in self.order if (o := ref()) is not None]
        return [o for o in alive if any(g["params"] for g in getattr(o, "param_groups", []))]

    def units(self) -> list[Unit]:
        """Group optimizers and the outermost modules that own what they update."""
        self.changed = False
        return self.peek()

    def peek(self) -> list[Unit]:
        """Return what ``units`` would, without having asked."""
        optimizers = self.optimizers()
        return group_units(optimizers, owners(optimizers))


def owners(optimizers: Iterable[Optimizer]) -> list[nn.Module]:
    """Return the outermost modules that hold a parameter of ``optimizers``, in the order of these.

    Found among all objects of the process, so they may live in a function's frame or in
    an attribute just as well as in the notebook's namespace.  The collector, which lists
    them, does so by their generations, and these are not the same on all ranks.
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
    """Join what shares a parameter into one unit, in the order of the optimizers."""
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
    """Tell whether gradients are on and some module of ``units`` is in training mode.

    A unit without modules (an optimizer over bare tensors) counts as training.
    """
    return torch.is_grad_enabled() and any(
        not unit.modules or any(m.training for m in unit.modules) for unit in units
    )
