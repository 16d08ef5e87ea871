"""What DeepSpeed trains exactly, decided before its engine takes a model apart.

Its partitions are flat: a rank updates some elements of a parameter, another the rest.
An optimizer that looks at a parameter as a whole (its norm, its rows) would do something
else there.  So each is tried on small tensors, whole and in two flat pieces.
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
from nbmgpu.strategies.per_parameter import shapes_to_try, unhooked_step, visible_rate

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.strategies.base import Unit

TINY = (4, 6)
"""A shape that is always tried."""

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

SCALES = (1e-2, 1.0, 1e2)
"""Sizes of the gradients of the trial steps."""


def check_unit(unit: Unit, stage: int) -> None:
    """Refuse a unit that DeepSpeed cannot train exactly.

    Raises:
        StrategyError: it says why, and what can.
    """
    problem = _problem_of_parameters(unit, stage)
    for optimizer in unit.optimizers:
        _refuse_required_closure(optimizer)
        problem = problem or _problem_of_optimizer(optimizer)
    if problem:
        what = f"DeepSpeed cannot train this exactly: {problem[0]}"
        raise StrategyError(format_message(what, "", f"%%mgpu --strategy {problem[1]}"))


def _problem_of_parameters(unit: Unit, stage: int) -> tuple[str, str] | None:
    """Return what is in the way, and the nearest strategy that has no such problem."""
    nearest = {1: "zero1", 2: "zero2", 3: "fsdp"}[stage]
    owned = {id(p) for module in unit.modules for p in module.parameters()}
    trained = [p for o in unit.optimizers for g in o.param_groups for p in g["params"]]
    if any(id(p) not in owned for p in trained):
        return "the optimizer updates tensors that belong to no module", "ddp"
    if any(type(p) is not nn.Parameter for p in trained if p.requires_grad):
        return "a parameter has a class of its own", "ddp"
    modules = [m for root in unit.modules for m in root.modules()]
    if any(getattr(m, "sparse", False) for m in modules if isinstance(m, EMBEDDINGS)):
        return "an embedding has sparse gradients", "ddp"
    dtypes = {p.dtype for p in trained if p.requires_grad}
    if dtypes != {torch.float32}:
        named = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        return f"its partitions are float32, the parameters are {named}", nearest
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


def _problem_of_optimizer(optimizer: Optimizer) -> tuple[str, str] | None:
    name = type(optimizer).__name__
    before = random_state.capture()
    try:
        with torch.random.fork_rng(devices=()):
            alike = all(_steps_alike(optimizer, shape) for shape in _shapes(optimizer))
    except Exception as error:
        return f"a trial step of {name} failed ({type(error).__name__}: {error})", "ddp"
    finally:
        random_state.restore(before)
    if alike:
        return None
    reason = f"{name} looks at a parameter as a whole, and DeepSpeed cuts parameters into pieces"
    return reason, "zero1"


def _shapes(optimizer: Optimizer) -> list[tuple[int, ...]]:
    own = shapes_to_try(p for group in optimizer.param_groups for p in group["params"])
    return [TINY, *(shape for shape in own if math.prod(shape) > 1)]


def _steps_alike(optimizer: Optimizer, shape: tuple[int, ...]) -> bool:
    whole, pieces = (_trial(optimizer, shape, in_pieces) for in_pieces in (False, True))
    return torch.allclose(whole, pieces, rtol=1e-9, atol=1e-12, equal_nan=True)


def _trial(optimizer: Optimizer, shape: tuple[int, ...], in_pieces: bool) -> Tensor:
    """Return a tensor, flat, after some steps of a twin of ``optimizer``."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    size = start.numel()
    cuts = list(itertools.pairwise((0, size * 2 // 5 | 1, size)))  # odd: within a row, mostly
    parts = [start.reshape(-1)[a:b].clone() for a, b in cuts] if in_pieces else [start]
    tensors = [nn.Parameter(part) for part in parts]
    twin = _twin(optimizer, tensors)
    for number, scale in enumerate(SCALES):
        gradient = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        pieces = [gradient.reshape(-1)[a:b] for a, b in cuts] if in_pieces else [gradient]
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.grad = piece.clone()
        torch.manual_seed(number)
        unhooked_step(optimizer)(twin)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _twin(optimizer: Optimizer, tensors: list[nn.Parameter]) -> Optimizer:
    """Return an optimizer like ``optimizer``, without state, over ``tensors`` in every group."""
    memo: dict[int, Any] = {id(t): t for t in tensors}
    twin = object.__new__(type(optimizer))
    memo[id(optimizer)] = twin
    groups = []
    for group in optimizer.param_groups:
        memo |= dict.fromkeys(map(id, group["params"]), tensors[0])
        rates = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in visible_rate(group).items()}
        groups.append({**group, **rates, "params": []})
    groups[0]["params"] = tensors
    for key, value in vars(optimizer).items():
        if "_hooks" in key:  # those of the cell shall not see the trial
            setattr(twin, key, type(value)())
        elif key not in ("state", "param_groups", "step"):
            setattr(twin, key, copy.deepcopy(value, memo))
    twin.param_groups = copy.deepcopy(groups, memo)
    twin.state = collections.defaultdict(dict)
    return twin
