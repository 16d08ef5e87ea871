"""Does an optimizer update each parameter by itself?  Found out by trying.

A twin of the optimizer steps on a few tiny tensors together, and other twins on each
of them alone.  If anything differs (weights, states, counters), then ranks that
step a share of the parameters each would not do what one device does.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nbmgpu.environment import random_state

SCALES = (1e-3, 1.0, 1e3)
"""Sizes of the gradients of the trial steps: a norm may matter only when it is large."""

SIDE = 3
"""Largest size of a dimension of the tiny tensors."""

SIDES = (260, 130)
"""Largest sizes of the first two dimensions where a trial looks into a parameter: optimizers factor
matrices from 32 or 128 rows and columns on, and keep states in blocks from 4096 elements on."""


def unhooked_step(optimizer: Optimizer) -> Callable[..., Any]:
    """Return the function ``step`` of the optimizer's class, without what fires hooks around it."""
    step: Any = type(optimizer).step
    while hasattr(step, "is_patched") or hasattr(step, "hooked"):  # ``hooked`` is torch's own mark
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


def cross_parameter_dependence(optimizer: Optimizer, with_closure: bool = False) -> str:
    """Return in what way ``optimizer`` treats parameters together; empty if it does not.

    ``with_closure`` asks for its steps with a closure.  Random states stay as they are.
    """
    before = random_state.capture()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            return _try(optimizer, (True,) if with_closure else (False, True))
    finally:
        random_state.restore(before)


def _try(optimizer: Optimizer, closures: tuple[bool, ...]) -> str:
    problem = ""
    for way in itertools.product(closures, (False, True), (False, True)):
        try:
            together = _Trial(optimizer, *way)
            together.run(range(len(together.tensors)))
        except Exception as error:
            problem = problem or f"a trial step failed with {type(error).__name__}: {error}"
            continue
        return _differs(optimizer, together)
    return problem


def _differs(optimizer: Optimizer, together: _Trial) -> str:
    for place, tensor in enumerate(together.tensors):
        alone = _Trial(optimizer, *together.way)
        try:
            alone.run([place])
        except Exception as error:
            return f"with one parameter, a trial step failed with {type(error).__name__}: {error}"
        other = alone.tensors[place]
        if not _equal(tensor.detach(), other.detach()):
            return "what it does to a parameter depends on the others"
        states = dict(together.twin.state), dict(alone.twin.state)
        if not _equal(states[0].get(tensor), states[1].get(other)):
            return "the state of a parameter depends on the others"
        if not _equal(together.counters(), alone.counters()):
            return "it counts parameters"
    return ""


def shapes_to_try(parameters: Iterable[Tensor]) -> list[tuple[int, ...]]:
    """Return the shapes of ``parameters``, each once, with sizes cut to what a trial needs."""
    return sorted({_cut(tuple(p.shape)) for p in parameters})


def _cut(shape: tuple[int, ...]) -> tuple[int, ...]:
    limits = itertools.chain(SIDES, itertools.repeat(SIDE))
    return tuple(map(min, shape, limits))


def visible_rate(group: dict[str, Any]) -> dict[str, Any]:
    """Return the learning rate for a trial of ``group``; a warm-up may begin at 0, unseen."""
    rate = group.get("lr")
    found = torch.full_like(rate, 1e-2) if isinstance(rate, Tensor) else 1e-2
    return {"lr": found} if "lr" in group else {}


class _Trial:
    """A twin of an optimizer, with tiny float64 tensors for parameters."""

    def __init__(self, optimizer: Optimizer, closure: bool, sparse: bool, warm: bool) -> None:
        """Make the twin; twins of one optimizer start equal.

        Steps get a ``closure``, gradients are ``sparse``, states are cut out of
        ``optimizer``'s if ``warm``: some have them from the start.
        """
        self.way = closure, sparse, warm
        self.closure, self.sparse = closure, sparse
        self.step = unhooked_step(optimizer)
        self.tensors: list[Tensor] = []
        self.sources: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(0)
        memo: dict[int, Any] = {}
        groups = [self._group(group, memo) for group in optimizer.param_groups]
        self.twin = object.__new__(type(optimizer))
        memo[id(optimizer)] = self.twin
        left_out = ("state", "param_groups", "step")  # a scheduler has put a step of its own there
        for name, value in vars(optimizer).items():
            if "_hooks" in name:  # those of the cell shall not see the trial
                setattr(self.twin, name, type(value)())
            elif name not in left_out:
                # What the optimizer holds of its parameters here becomes the tiny ones, too.
                setattr(self.twin, name, copy.deepcopy(value, memo))
        self.twin.param_groups = copy.deepcopy(groups, memo)
        self.twin.state = defaultdict(dict)
        if warm:
            for tiny, source in zip(self.tensors, self.sources, strict=True):
                state = optimizer.state[source].items() if source in optimizer.state else ()
                self.twin.state[tiny] = {k: _cut_out(v, source, tiny) for k, v in state}
        self.members = [list(group["params"]) for group in self.twin.param_groups]

    def _group(self, group: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
        """Return a group with two tiny parameters of every kind that ``group`` has."""
        kinds: dict[Any, int] = {}
        chosen = []
        for parameter in group["params"]:
            kind = (parameter.dim(), parameter.dtype)
            kinds[kind] = kinds.get(kind, 0) + 1
            tiny = self._tiny(parameter) if kinds[kind] <= 2 else None
            memo[id(parameter)] = tiny
            chosen += [] if tiny is None else [tiny]
        if len(chosen) == 1:
            chosen.append(self._tiny(group["params"][0]))
        for tiny in chosen:
            memo[id(tiny)] = tiny
        return {**group, **visible_rate(group), "params": chosen}

    def _tiny(self, parameter: Tensor) -> Tensor:
        shape = [min(size, SIDE) for size in parameter.shape]
        dtype = torch.complex128 if parameter.is_complex() else torch.float64
        values = torch.randn(shape, generator=self.generator, dtype=dtype)
        self.sources.append(parameter)
        self.tensors.append(nn.Parameter(values.to(parameter.device)))
        return self.tensors[-1]

    def run(self, places: Any) -> None:
        """Step on the tensors at ``places`` only."""
        stepped = {id(self.tensors[place]) for place in places}
        for group, members in zip(self.twin.param_groups, self.members, strict=True):
            group["params"] = [p for p in members if id(p) in stepped]
        for number, scale in enumerate(SCALES):
            for place in places:
                self.tensors[place].grad = self._gradient(self.tensors[place], number, place, scale)
            torch.manual_seed(number)
            arguments = [lambda: torch.tensor(1.0)] if self.closure else []
            self.step(self.twin, *arguments)

    def _gradient(self, tensor: Tensor, number: int, place: int, scale: float) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * place + number)
        values = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * scale
        return (values.to_sparse(1) if self.sparse else values).to(tensor.device)

    def counters(self) -> list[Any]:
        """Return the numbers that the twin and its groups hold, besides those of parameters."""
        holders = [vars(self.twin), *self.twin.param_groups]
        return [
            {name: value for name, value in holder.items() if isinstance(value, int | float)}
            for holder in holders
        ]


def _cut_out(value: Any, source: Tensor, tiny: Tensor) -> Any:
    """Return the part of a state of ``source`` that is one of ``tiny``."""
    if not isinstance(value, Tensor) or value.shape != source.shape:
        return copy.deepcopy(value)
    part = value.detach()[tuple(slice(size) for size in tiny.shape)].clone()
    return part.to(tiny.dtype) if part.is_floating_point() else part


def _equal(a: Any, b: Any) -> bool:
    """Compare two states, with tensors up to rounding."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return False
        return torch.allclose(a.to(b.dtype), b, rtol=1e-9, atol=1e-12, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and (not isinstance(a, int | float | str) or repr(a) == repr(b))


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a call of ``step`` brings a function along."""
    return any(callable(v) for v in (*args, *kwargs.values()))
