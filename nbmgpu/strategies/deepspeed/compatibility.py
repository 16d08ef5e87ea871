"""Checks, before an engine is created, that DeepSpeed trains a unit exactly.

DeepSpeed's partitions are flat: one rank updates some elements of a parameter, another the rest.
An optimizer whose update depends on the whole parameter (its norm, its rows) would give
other results.  So each optimizer is tried on small tensors, once full and once as two flat parts.
"""

from __future__ import annotations

import collections
import copy
import inspect
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nbmgpu.environment import random_state
from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.per_parameter import nonzero_learning_rate, shapes_to_try, unhooked_step

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.strategies.base import Unit

DEFAULT_SHAPE = (4, 6)
"""A shape that is tried for every optimizer."""

EMBEDDING_CLASSES = (nn.Embedding, nn.EmbeddingBag)

GRADIENT_SCALES = (1e-2, 1.0, 1e2)
"""Magnitudes of the gradients in the trial steps."""


def check_unit(unit: Unit, stage: int) -> None:
    """Refuse a unit that DeepSpeed cannot train exactly.

    Raises:
        StrategyError: with the reason, and a strategy that trains it.
    """
    problem = _parameter_problem(unit, stage)
    for optimizer in unit.optimizers:
        _refuse_required_closure(optimizer)
        problem = problem or _optimizer_problem(optimizer)
    if problem:
        what = f"DeepSpeed cannot train this exactly: {problem[0]}"
        raise StrategyError(format_message(what, "", f"%%mgpu --strategy {problem[1]}"))


def _parameter_problem(unit: Unit, stage: int) -> tuple[str, str] | None:
    """Return the problem, and the most similar strategy without it; None if there is none."""
    most_similar = {1: "zero1", 2: "zero2", 3: "fsdp"}[stage]
    owned = {id(p) for module in unit.modules for p in module.parameters()}
    trained = [p for o in unit.optimizers for g in o.param_groups for p in g["params"]]
    if any(id(p) not in owned for p in trained):
        return "the optimizer updates tensors that belong to no module", "ddp"
    if any(type(p) is not nn.Parameter for p in trained if p.requires_grad):
        return "a parameter has a class of its own", "ddp"
    modules = [m for root in unit.modules for m in root.modules()]
    if any(getattr(m, "sparse", False) for m in modules if isinstance(m, EMBEDDING_CLASSES)):
        return "an embedding has sparse gradients", "ddp"
    dtypes = {p.dtype for p in trained if p.requires_grad}
    if dtypes != {torch.float32}:
        named = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        return f"its partitions are float32, the parameters are {named}", most_similar
    return None


def _refuse_required_closure(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose ``step`` requires a closure, such as LBFGS."""
    parameters = list(inspect.signature(unhooked_step(optimizer)).parameters.values())[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.default is p.empty and p.kind in positional for p in parameters):
        raise StrategyError(
            format_message(
                f"DeepSpeed cannot step {type(optimizer).__name__}: its step(closure) evaluates "
                "the loss itself, as often as it needs",
                "DeepSpeed averages the gradients before the step, so the optimizer must use the "
                "gradients of a finished backward pass, as SGD and AdamW do",
                "%%mgpu --strategy ddp, or fsdp where the model needs to be sharded",
            )
        )


def _optimizer_problem(optimizer: Optimizer) -> tuple[str, str] | None:
    name = type(optimizer).__name__
    try:
        with random_state.kept():
            equal = all(_steps_equal(optimizer, shape) for shape in _trial_shapes(optimizer))
    except Exception as error:
        return f"a trial step of {name} failed ({type(error).__name__}: {error})", "ddp"
    if equal:
        return None
    reason = f"an update by {name} depends on whole parameters, and DeepSpeed partitions them"
    return reason, "zero1"


def _trial_shapes(optimizer: Optimizer) -> list[tuple[int, ...]]:
    own = shapes_to_try(p for group in optimizer.param_groups for p in group["params"])
    return [DEFAULT_SHAPE, *(shape for shape in own if math.prod(shape) > 1)]


def _steps_equal(optimizer: Optimizer, shape: tuple[int, ...]) -> bool:
    full, parts = (_trial(optimizer, shape, split) for split in (False, True))
    return torch.allclose(full, parts, rtol=1e-9, atol=1e-12, equal_nan=True)


def _trial(optimizer: Optimizer, shape: tuple[int, ...], split: bool) -> Tensor:
    """Return a flat tensor after steps of a copy of ``optimizer``, in two parts if ``split``."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    size = start.numel()
    # The boundary is odd, so that it is inside a row of most shapes.
    cuts = list(itertools.pairwise((0, size * 2 // 5 | 1, size)))
    parts = [start.reshape(-1)[a:b].clone() for a, b in cuts] if split else [start]
    tensors = [nn.Parameter(part) for part in parts]
    copied = _copy_without_state(optimizer, tensors)
    for number, scale in enumerate(GRADIENT_SCALES):
        gradient = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        grads = [gradient.reshape(-1)[a:b] for a, b in cuts] if split else [gradient]
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = grad.clone()
        torch.manual_seed(number)
        unhooked_step(optimizer)(copied)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _copy_without_state(optimizer: Optimizer, tensors: list[nn.Parameter]) -> Optimizer:
    """Return a copy of ``optimizer`` with ``tensors`` for parameters and without state."""
    memo: dict[int, Any] = {id(t): t for t in tensors}
    copied = object.__new__(type(optimizer))
    memo[id(optimizer)] = copied
    groups = []
    for group in optimizer.param_groups:
        memo |= dict.fromkeys(map(id, group["params"]), tensors[0])
        rates = {
            k: v.cpu() if isinstance(v, Tensor) else v
            for k, v in nonzero_learning_rate(group).items()
        }
        groups.append({**group, **rates, "params": []})
    groups[0]["params"] = tensors
    for key, value in vars(optimizer).items():
        if "_hooks" in key:  # the cell's hooks must not run in a trial
            setattr(copied, key, type(value)())
        elif key not in ("state", "param_groups", "step"):
            setattr(copied, key, copy.deepcopy(value, memo))
    copied.param_groups = copy.deepcopy(groups, memo)
    copied.state = collections.defaultdict(dict)
    return copied
