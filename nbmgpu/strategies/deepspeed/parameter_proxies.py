"""Parameters and optimizer states of an engine as the cell sees them: full, as on one device.

DeepSpeed removes gradients as they arrive, partitions optimizer states, and under stage 3 leaves
parameters empty.  A cell that accessed them would find None, nothing, or zeros.  So while an engine
holds a parameter, its class is one of those below: reads gather from all ranks, and changes are
written back before the next step.  All ranks run the same cell, so all of them take part.
"""

from __future__ import annotations

import collections
import copy
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from .partitioned_state import PartitionedStates

TENSOR_GRAD: Any = torch.Tensor.grad
"""The descriptor of ``torch.Tensor.grad``: the gradient that autograd has stored on this rank."""

VALUE_ATTRIBUTES = {"data", "T", "mT", "H", "mH", "real", "imag"}
"""Attributes of a tensor that need its values."""

SHAPE_METHODS = {"size", "numel", "nelement", "dim", "ndimension", "shape", "ndim", "__len__"}
"""Methods and attributes that need the full shape, and no values."""

METADATA_METHODS = {
    "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "retain_grad",
    "is_floating_point", "is_complex", "element_size", "get_device", "type", "is_contiguous",
}  # fmt: skip
"""Methods that need neither values nor the full shape."""


class ParameterProxy(nn.Parameter):
    """A parameter of an engine whose ``.grad`` is the full gradient of the global batch."""

    engine_wrapper: Any  # an EngineWrapper
    is_averaged: ClassVar[bool] = True
    """For ``--exact always``: the engine averages the gradients of the ranks."""

    @property
    def grad(self) -> Tensor | None:
        """The averaged gradient; changes to it count in the next step."""
        if self.engine_wrapper.engine.is_running:
            grad: Tensor | None = TENSOR_GRAD.__get__(self)
        else:
            grad = self.engine_wrapper.gradients.get(self)
        return grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.engine_wrapper.engine.is_running:
            TENSOR_GRAD.__set__(self, value)
        else:
            self.engine_wrapper.gradients.set(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """Return a plain parameter with the same values."""
        if id(self) not in memo:
            self.engine_wrapper.engine.check_copy()
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain parameter, without DeepSpeed's attributes."""
        self.engine_wrapper.engine.check_copy()
        return _make_parameter, (self.detach().clone(), self.requires_grad)


def _make_parameter(values: Tensor, requires_grad: bool) -> nn.Parameter:
    return nn.Parameter(values, requires_grad)


class PartitionedParameterProxy(ParameterProxy):
    """A parameter of stage 3, which is gathered when its values are accessed."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``; gather its parameters before, if it needs their values."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            need = _need_of(func)
            if need == "shape" and args and isinstance(args[0], PartitionedParameterProxy):
                meta = args[0].engine_wrapper.gathering.meta_tensor(args[0])
                if meta is not None and not _called_by_deepspeed():
                    return func(meta, *args[1:], **kwargs)
            elif need == "values":
                found = list(_partitioned([*args, *kwargs.values()]))
                if found and not _called_by_deepspeed():
                    found[0].engine_wrapper.gathering.on_access(found, _is_in_place(func))
            return func(*args, **kwargs)


def _need_of(func: Any) -> str:
    """Return what ``func`` needs of a tensor: ``shape``, ``values``, or an empty string."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        name = func.__self__.__name__
        if name not in SHAPE_METHODS:
            return "values" if name in VALUE_ATTRIBUTES else ""
    if name in SHAPE_METHODS:
        return "shape"
    return "" if name in METADATA_METHODS else "values"


def _is_in_place(func: Any) -> bool:
    """Whether ``func`` changes a tensor: names of in-place operations end in one underscore."""
    name = str(getattr(func, "__name__", ""))
    return name == "__set__" or (name.endswith("_") and not name.endswith("__"))


def _partitioned(values: Any) -> Iterator[PartitionedParameterProxy]:
    for value in values:
        if isinstance(value, PartitionedParameterProxy):
            yield value
        elif isinstance(value, list | tuple):
            yield from _partitioned(value)


def _called_by_deepspeed() -> bool:
    """Whether the first caller outside torch is DeepSpeed, which handles partitions itself."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package != "torch":
            return bool(package == "deepspeed")
        frame = frame.f_back
    return False


class PartitionedOptimizerState(collections.defaultdict[Any, Any]):
    """``optimizer.state`` of an engine, which gathers the full states when it is accessed.

    Attributes:
        is_gathered: whether it holds the full states, which the cell may have changed.
    """

    def __init__(self, states: PartitionedStates, index: int) -> None:
        """Represent the state of the optimizer number ``index`` in ``states``."""
        super().__init__(dict)
        self.states = states
        self.index = index
        self.is_gathered = False

    def _gather(self) -> None:
        if not self.is_gathered:
            self.is_gathered = True
            self.update(self.states.gather(self.index))

    def __reduce__(self) -> Any:
        """Pickle as the ``defaultdict`` of torch's optimizers."""
        return collections.defaultdict, (dict, dict(self.items()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy as the ``defaultdict`` of torch's optimizers."""
        return copy.deepcopy(collections.defaultdict(dict, self.items()), memo)


def _gathering(name: str) -> Any:
    """Return the dict method ``name`` with a gather before it."""
    original = getattr(collections.defaultdict, name)

    def method(self: PartitionedOptimizerState, *args: Any, **kwargs: Any) -> Any:
        self._gather()
        return original(self, *args, **kwargs)

    return method


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__",
    "__repr__", "items", "keys", "values", "get", "pop", "popitem", "setdefault", "clear", "copy",
):  # fmt: skip
    setattr(PartitionedOptimizerState, _name, _gathering(_name))
