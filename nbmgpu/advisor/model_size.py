"""What there is to hold: parameters, buffers, and the states of the optimizer.

States are those that the optimizer has; where it has none yet, a twin of it steps on tiny
tensors of the same kinds, so that any class is counted as it is: Adam's two tensors,
Adafactor's rows and columns, none for plain SGD.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

SIDES = (5, 7, 11, 13, 17, 19)
"""Sides of a tiny tensor, all different: so the shape of a state tells what it follows."""


@dataclass(frozen=True)
class Counted:
    """A model and its optimizer in numbers; sizes in bytes.

    Attributes:
        elements: numbers in all parameters.
        trained: numbers in the parameters that train.
        parameters: bytes of all parameters, each once.
        gradients: bytes of the gradients, one for each parameter that trains.
        buffers: bytes of the buffers.
        sizes: numbers in each parameter of the optimizer that trains, in its order.
        states: bytes of optimizer states for each of them.
        largest: bytes of the largest parameter.
        optimizer: the class of the optimizer, or what is assumed in its place.
        guessed: whether the optimizer's states are assumed and not looked at.
    """

    elements: int
    trained: int
    parameters: int
    gradients: int
    buffers: int
    sizes: tuple[int, ...]
    states: tuple[int, ...]
    largest: int
    optimizer: str
    guessed: bool

    @property
    def all_states(self) -> int:
        """Bytes of all optimizer states."""
        return sum(self.states)

    def largest_share(self, ranks: int) -> int:
        """Return the bytes of states on the rank that has most of them under ``zero1``.

        Whole parameters are dealt out, the largest first, each to the rank with the fewest
        elements so far: what ``ZeroRedundancyOptimizer`` does.
        """
        elements, held = [0] * ranks, [0] * ranks
        order = sorted(range(len(self.sizes)), key=lambda i: -self.sizes[i])
        for place in order:
            rank = elements.index(min(elements))
            elements[rank] += self.sizes[place]
            held[rank] += self.states[place]
        return max(held)


def count(model: nn.Module, optimizer: Optimizer | None = None) -> Counted:
    """Count ``model`` and what ``optimizer`` keeps for it, or would; Adam's states without one."""
    parameters = list(model.parameters())
    if optimizer is not None:
        known = {id(p) for p in parameters}
        groups = [p for group in optimizer.param_groups for p in group["params"]]
        parameters += [p for p in groups if id(p) not in known]
    trained = [p for p in parameters if p.requires_grad]
    sizes, states, guessed = _states(optimizer, trained)
    return Counted(
        elements=sum(map(_numel, parameters)),
        trained=sum(map(_numel, trained)),
        parameters=sum(map(_nbytes, parameters)),
        gradients=sum(map(_nbytes, trained)),
        buffers=sum(map(_nbytes, model.buffers())),
        sizes=tuple(sizes),
        states=tuple(states),
        largest=max(map(_nbytes, parameters), default=0),
        optimizer="Adam" if optimizer is None else type(optimizer).__name__,
        guessed=guessed,
    )


def _numel(tensor: Tensor) -> int:
    return 0 if _is_lazy(tensor) else tensor.numel()


def _nbytes(tensor: Tensor) -> int:
    return _numel(tensor) * tensor.element_size()


def _is_lazy(tensor: Tensor) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(tensor))  # its shape is known after the first forward pass


def _states(
    optimizer: Optimizer | None, trained: list[nn.Parameter]
) -> tuple[list[int], list[int], bool]:
    """Return size and bytes of states of each parameter, and whether these are guessed."""
    if optimizer is None:
        sizes = [_numel(p) for p in trained]
        return sizes, [_adams(p) for p in trained], True
    sizes, states, guessed = [], [], False
    for group in optimizer.param_groups:
        tried: dict[Any, list[Kept] | None] = {}
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            held = _tensors(optimizer.state.get(parameter))
            if held:
                size = sum(_nbytes(t) for t in held)
            else:
                kind = parameter.dtype, parameter.dim()
                if kind not in tried:
                    tried[kind] = try_step(optimizer, group, *kind)
                kept = tried[kind]
                guessed |= kept is None
                size = _adams(parameter) if kept is None else sum(k.of(parameter) for k in kept)
            sizes.append(_numel(parameter))
            states.append(size)
    return sizes, states, guessed


def _adams(parameter: Tensor) -> int:
    return 2 * _nbytes(parameter)


def _tensors(state: Any) -> list[Tensor]:
    return list(_walk(state))


def _walk(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _walk(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _walk(inner)


@dataclass(frozen=True)
class Kept:
    """One tensor that an optimizer keeps for a parameter.

    ``sides`` are dimensions of the parameter that it follows, ``numbers`` how many there
    are for each, ``width`` the bytes of a number.
    """

    sides: tuple[int, ...]
    numbers: int
    width: int

    def of(self, parameter: Tensor) -> int:
        """Return its bytes for ``parameter``."""
        return math.prod(parameter.shape[side] for side in self.sides) * self.numbers * self.width


def try_step(
    optimizer: Optimizer, group: dict[str, Any], dtype: torch.dtype, dims: int
) -> list[Kept] | None:
    """Let a twin of ``optimizer`` step on a tiny tensor; return what it keeps, or None.

    Random states and the optimizer itself stay as they are.
    """
    import torch

    from nbmgpu.environment import random_state
    from nbmgpu.strategies.per_parameter import own_step

    if dims > len(SIDES):
        return None
    before = random_state.capture()
    try:
        with torch.enable_grad(), torch.device("cpu"):
            tiny = torch.nn.Parameter(torch.ones(SIDES[:dims], dtype=dtype))
            tiny.grad = torch.ones_like(tiny)
            twin = _twin(optimizer, group, tiny)
            own_step(optimizer)(twin)
            return [_kept(t) for t in _tensors(dict(twin.state))]
    except Exception:  # LBFGS wants a closure, others a kernel of their own
        return None
    finally:
        random_state.restore(before)


def _twin(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> Any:
    from collections import defaultdict

    twin: Any = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if "_hooks" in name:
            setattr(twin, name, type(value)())
        elif name not in ("state", "param_groups", "step"):
            setattr(twin, name, copy.copy(value))
    plain = {k: v for k, v in group.items() if k != "params"}
    twin.param_groups = [{**plain, "params": [parameter], "fused": None, "capturable": False}]
    if "fused" not in group:
        del twin.param_groups[0]["fused"]
    if "capturable" not in group:
        del twin.param_groups[0]["capturable"]
    twin.state = defaultdict(dict)
    return twin


def _kept(tensor: Tensor) -> Kept:
    sides = tuple(SIDES.index(side) for side in tensor.shape if side in SIDES)
    others = math.prod(side for side in tensor.shape if side not in SIDES)
    return Kept(sides, others, tensor.element_size())
