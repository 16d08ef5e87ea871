"""Sizes of a model and its optimizer: parameters, gradients, buffers and optimizer states.

Existing optimizer states are measured.  Where the optimizer has none yet, a clone of it takes a
step on tiny tensors of the same dtype and rank, so that any class is measured and not guessed:
two tensors for Adam, rows and columns for Adafactor, none for plain SGD.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

PROBE_SIDES = (5, 7, 11, 13, 17, 19)
"""Distinct sizes of the dimensions of a tiny parameter.

The shape of a state then shows which dimensions of the parameter it follows.
"""


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model and its optimizer, in bytes unless noted otherwise.

    Attributes:
        elements: number of elements of all parameters.
        trainable: number of elements of the trainable parameters.
        parameters: bytes of all parameters; shared parameters count once.
        gradients: bytes of the gradients of all trainable parameters.
        buffers: bytes of the buffers.
        numels: number of elements of each trainable parameter, in the optimizer's order.
        states: bytes of optimizer states of each of these parameters.
        largest: bytes of the largest parameter.
        optimizer: class name of the optimizer, or of the assumed one.
        states_assumed: whether the optimizer states are assumed and not measured.
    """

    elements: int
    trainable: int
    parameters: int
    gradients: int
    buffers: int
    numels: tuple[int, ...]
    states: tuple[int, ...]
    largest: int
    optimizer: str
    states_assumed: bool

    @property
    def all_states(self) -> int:
        """Bytes of all optimizer states."""
        return sum(self.states)

    @property
    def model_states(self) -> int:
        """Bytes of parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.all_states

    def largest_state_shard(self, ranks: int) -> int:
        """Return the bytes of states on the rank that has the most of them under ``zero1``.

        As in ``ZeroRedundancyOptimizer``, whole parameters are assigned, the largest first, each
        to the rank with the fewest elements so far.
        """
        elements, nbytes = [0] * ranks, [0] * ranks
        order = sorted(range(len(self.numels)), key=lambda i: -self.numels[i])
        for index in order:
            rank = elements.index(min(elements))
            elements[rank] += self.numels[index]
            nbytes[rank] += self.states[index]
        return max(nbytes)


def measure_model(model: nn.Module, optimizer: Optimizer | None = None) -> ModelSize:
    """Return the sizes of ``model`` and of the states of ``optimizer``, by default of Adam."""
    parameters = list(model.parameters())
    if optimizer is not None:
        known = {id(p) for p in parameters}
        in_groups = [p for group in optimizer.param_groups for p in group["params"]]
        parameters += [p for p in in_groups if id(p) not in known]
    trainable = [p for p in parameters if p.requires_grad]
    numels, states, assumed = _state_sizes(optimizer, trainable)
    return ModelSize(
        elements=sum(map(_numel, parameters)),
        trainable=sum(map(_numel, trainable)),
        parameters=sum(map(_nbytes, parameters)),
        gradients=sum(map(_nbytes, trainable)),
        buffers=sum(map(_nbytes, model.buffers())),
        numels=tuple(numels),
        states=tuple(states),
        largest=max(map(_nbytes, parameters), default=0),
        optimizer="Adam" if optimizer is None else type(optimizer).__name__,
        states_assumed=assumed,
    )


def _numel(tensor: Tensor) -> int:
    return 0 if _is_lazy(tensor) else tensor.numel()


def _nbytes(tensor: Tensor) -> int:
    return _numel(tensor) * tensor.element_size()


def _is_lazy(tensor: Tensor) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(tensor))  # it has no shape before the first forward pass


def _state_sizes(
    optimizer: Optimizer | None, trainable: list[nn.Parameter]
) -> tuple[list[int], list[int], bool]:
    """Return numel and state bytes of each parameter, and whether any states are assumed."""
    if optimizer is None:
        return [_numel(p) for p in trainable], [_adam_states(p) for p in trainable], True
    numels, states, assumed = [], [], False
    for group in optimizer.param_groups:
        probed: dict[Any, list[StateShape] | None] = {}
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            existing = list(_tensors_in(optimizer.state.get(parameter)))
            if existing:
                size = sum(_nbytes(t) for t in existing)
            else:
                kind = parameter.dtype, parameter.dim()
                if kind not in probed:
                    probed[kind] = probe_states(optimizer, group, *kind)
                shapes = probed[kind]
                assumed |= shapes is None
                size = (
                    _adam_states(parameter)
                    if shapes is None
                    else sum(shape.nbytes_for(parameter) for shape in shapes)
                )
            numels.append(_numel(parameter))
            states.append(size)
    return numels, states, assumed


def _adam_states(parameter: Tensor) -> int:
    return 2 * _nbytes(parameter)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dicts, lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors_in(inner)


@dataclass(frozen=True)
class StateShape:
    """Shape of one state tensor, relative to its parameter.

    Attributes:
        dims: dimensions of the parameter that the state has, too.
        elements: number of elements per element of these dimensions.
        element_size: bytes per element.
    """

    dims: tuple[int, ...]
    elements: int
    element_size: int

    @classmethod
    def of_probe(cls, state: Tensor) -> StateShape:
        """Return the shape of a state of a parameter with the dimensions ``PROBE_SIDES``."""
        dims = tuple(PROBE_SIDES.index(side) for side in state.shape if side in PROBE_SIDES)
        elements = math.prod(side for side in state.shape if side not in PROBE_SIDES)
        return cls(dims, elements, state.element_size())

    def nbytes_for(self, parameter: Tensor) -> int:
        """Return the bytes of this state for ``parameter``."""
        followed = math.prod(parameter.shape[dim] for dim in self.dims)
        return followed * self.elements * self.element_size


def probe_states(
    optimizer: Optimizer, group: dict[str, Any], dtype: torch.dtype, dims: int
) -> list[StateShape] | None:
    """Return the states that ``optimizer`` keeps for a parameter, by a step on a tiny one.

    A clone takes the step.  Random states and the optimizer itself do not change.

    Args:
        optimizer: the optimizer to clone.
        group: the parameter group whose options apply.
        dtype: dtype of the parameter.
        dims: number of dimensions of the parameter.

    Returns:
        None if the step fails.
    """
    import torch

    from nbmgpu.environment import random_state
    from nbmgpu.strategies.per_parameter import unhooked_step

    if dims > len(PROBE_SIDES):
        return None
    try:
        with random_state.kept(), torch.enable_grad(), torch.device("cpu"):
            tiny = torch.nn.Parameter(torch.ones(PROBE_SIDES[:dims], dtype=dtype))
            tiny.grad = torch.ones_like(tiny)
            clone = _clone_for(optimizer, group, tiny)
            unhooked_step(optimizer)(clone)
            return [StateShape.of_probe(t) for t in _tensors_in(dict(clone.state))]
    except Exception:  # LBFGS needs a closure, others need their own kernels
        return None


def _clone_for(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> Any:
    """Return a copy of ``optimizer`` without hooks and states, for ``parameter`` alone."""
    clone: Any = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if "_hooks" in name:
            setattr(clone, name, type(value)())
        elif name not in ("state", "param_groups", "step"):
            setattr(clone, name, copy.copy(value))
    options = {k: v for k, v in group.items() if k != "params"}
    clone.param_groups = [{**options, "params": [parameter], "fused": None, "capturable": False}]
    if "fused" not in group:
        del clone.param_groups[0]["fused"]
    if "capturable" not in group:
        del clone.param_groups[0]["capturable"]
    clone.state = defaultdict(dict)
    return clone
