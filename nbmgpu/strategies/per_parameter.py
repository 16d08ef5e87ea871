"""Checks by trial whether an optimizer updates each parameter independently of the others.

A copy of the optimizer steps on a few tiny tensors together, and other copies on each of them
alone.  If anything differs (weights, states, counters), then ranks that each step some of the
parameters would not get the numbers of one device.
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
"""Scales of the gradients in the trial steps: a norm may matter only when it is large."""

MAX_SIZE = 3
"""Largest size of a dimension of the tiny tensors."""

MAX_LEADING_SIZES = (260, 130)
"""Largest sizes of the first two dimensions in trials of elementwise updates: optimizers factor
matrices from 32 or 128 rows and columns on, and keep states in blocks from 4096 elements on."""


def unhooked_step(optimizer: Optimizer) -> Callable[..., Any]:
    """Return ``step`` of the optimizer's class, without the wrappers that call hooks."""
    step: Any = type(optimizer).step
    while hasattr(step, "is_patched") or hasattr(step, "hooked"):  # ``hooked`` is torch's mark
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


def cross_parameter_dependence(optimizer: Optimizer, with_closure: bool = False) -> str:
    """Return how ``optimizer`` combines parameters; empty if it updates each one independently.

    With ``with_closure``, this checks steps with a closure.  Random states do not change.
    """
    with random_state.kept():
        return _run_trials(optimizer, (True,) if with_closure else (False, True))


def _run_trials(optimizer: Optimizer, closures: tuple[bool, ...]) -> str:
    problem = ""
    for kind in itertools.product(closures, (False, True), (False, True)):
        try:
            together = _Trial(optimizer, *kind)
            together.run(range(len(together.tensors)))
        except Exception as error:
            problem = problem or f"a trial step failed with {type(error).__name__}: {error}"
            continue
        return _difference(optimizer, together)
    return problem


def _difference(optimizer: Optimizer, together: _Trial) -> str:
    """Return how steps on single parameters differ from ``together``; empty if they do not."""
    for index, tensor in enumerate(together.tensors):
        alone = _Trial(optimizer, *together.kind)
        try:
            alone.run([index])
        except Exception as error:
            return f"with one parameter, a trial step failed with {type(error).__name__}: {error}"
        other = alone.tensors[index]
        if not _equal(tensor.detach(), other.detach()):
            return "the update of a parameter depends on the others"
        states = dict(together.copied.state), dict(alone.copied.state)
        if not _equal(states[0].get(tensor), states[1].get(other)):
            return "the state of a parameter depends on the others"
        if not _equal(together.counters(), alone.counters()):
            return "its counters depend on the number of parameters"
    return ""


def shapes_to_try(parameters: Iterable[Tensor]) -> list[tuple[int, ...]]:
    """Return the distinct shapes of ``parameters``, limited to the sizes that a trial needs."""
    return sorted({_limited(tuple(p.shape)) for p in parameters})


def _limited(shape: tuple[int, ...]) -> tuple[int, ...]:
    limits = itertools.chain(MAX_LEADING_SIZES, itertools.repeat(MAX_SIZE))
    return tuple(map(min, shape, limits))


def nonzero_learning_rate(group: dict[str, Any]) -> dict[str, Any]:
    """Return a nonzero learning rate for a trial of ``group``: a warm-up may begin at 0."""
    rate = group.get("lr")
    found = torch.full_like(rate, 1e-2) if isinstance(rate, Tensor) else 1e-2
    return {"lr": found} if "lr" in group else {}


class _Trial:
    """A copy of an optimizer whose parameters are tiny float64 tensors."""

    def __init__(self, optimizer: Optimizer, closure: bool, sparse: bool, warm: bool) -> None:
        """Copy ``optimizer``; all copies of one optimizer start equal.

        Args:
            optimizer: the optimizer to copy.
            closure: pass a closure to steps.
            sparse: use sparse gradients.
            warm: start with slices of the optimizer's states; some create them in ``__init__``.
        """
        self.kind = closure, sparse, warm
        self.closure, self.sparse = closure, sparse
        self.step = unhooked_step(optimizer)
        self.tensors: list[Tensor] = []
        self.sources: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(0)
        memo: dict[int, Any] = {}
        groups = [self._group(group, memo) for group in optimizer.param_groups]
        self.copied = object.__new__(type(optimizer))
        memo[id(optimizer)] = self.copied
        skipped = ("state", "param_groups", "step")  # a scheduler replaces step on the instance
        for name, value in vars(optimizer).items():
            if "_hooks" in name:  # the trial does not call hooks of the cell
                setattr(self.copied, name, type(value)())
            elif name not in skipped:
                # References to parameters become references to the tiny ones.
                setattr(self.copied, name, copy.deepcopy(value, memo))
        self.copied.param_groups = copy.deepcopy(groups, memo)
        self.copied.state = defaultdict(dict)
        if warm:
            for tiny, source in zip(self.tensors, self.sources, strict=True):
                state = optimizer.state[source].items() if source in optimizer.state else ()
                self.copied.state[tiny] = {k: _slice_of(v, source, tiny) for k, v in state}
        self.members = [list(group["params"]) for group in self.copied.param_groups]

    def _group(self, group: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
        """Return a group with two tiny parameters of every rank and dtype in ``group``."""
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
        return {**group, **nonzero_learning_rate(group), "params": chosen}

    def _tiny(self, parameter: Tensor) -> Tensor:
        shape = [min(size, MAX_SIZE) for size in parameter.shape]
        dtype = torch.complex128 if parameter.is_complex() else torch.float64
        values = torch.randn(shape, generator=self.generator, dtype=dtype)
        self.sources.append(parameter)
        self.tensors.append(nn.Parameter(values.to(parameter.device)))
        return self.tensors[-1]

    def run(self, indices: Any) -> None:
        """Step on the tensors at ``indices`` only."""
        stepped = {id(self.tensors[index]) for index in indices}
        for group, members in zip(self.copied.param_groups, self.members, strict=True):
            group["params"] = [p for p in members if id(p) in stepped]
        for number, scale in enumerate(SCALES):
            for index in indices:
                self.tensors[index].grad = self._gradient(self.tensors[index], number, index, scale)
            torch.manual_seed(number)
            arguments = [lambda: torch.tensor(1.0)] if self.closure else []
            self.step(self.copied, *arguments)

    def _gradient(self, tensor: Tensor, number: int, index: int, scale: float) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * index + number)
        values = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * scale
        return (values.to_sparse(1) if self.sparse else values).to(tensor.device)

    def counters(self) -> list[Any]:
        """Return the numbers in the copy and its groups, without the states of parameters."""
        holders = [vars(self.copied), *self.copied.param_groups]
        return [
            {name: value for name, value in holder.items() if isinstance(value, int | float)}
            for holder in holders
        ]


def _slice_of(value: Any, source: Tensor, tiny: Tensor) -> Any:
    """Return the slice of a state of ``source`` that fits ``tiny``."""
    if not isinstance(value, Tensor) or value.shape != source.shape:
        return copy.deepcopy(value)
    part = value.detach()[tuple(slice(size) for size in tiny.shape)].clone()
    return part.to(tiny.dtype) if part.is_floating_point() else part


def _equal(a: Any, b: Any) -> bool:
    """Return whether two states are equal, tensors up to rounding."""
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
    """Return whether the arguments of ``step`` contain a closure."""
    return any(callable(v) for v in (*args, *kwargs.values()))
