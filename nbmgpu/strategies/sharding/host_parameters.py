"""Parameters that the cell has moved to a GPU, and whose values stay in the memory of the host.

A model that is split may be larger than one GPU.  ``model.to("cuda")`` comes before the optimizer
that tells which model trains, so it moves no parameter: each looks like one on the GPU, and its
values stay on the host until the strategy copies this rank's part.  What uses them before gets a
copy on the GPU: of the whole module for good where that leaves half of the free memory, and
otherwise of one parameter at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parameter import is_lazy

from nbmgpu.patches import PatchStack

from .param_state import MOVED, ParamState, make_plain
from .tensor_shard import TensorLayout, TensorShard, nothing

Convert = Callable[[Tensor], Tensor]
"""What ``nn.Module._apply`` does to each tensor of a module."""


@dataclass(frozen=True)
class WholeLayout(TensorLayout):
    """This rank holds the whole tensor, in the memory of the host; nothing is collective.

    Attributes:
        shape: shape of the tensor.
    """

    shape: torch.Size

    @property
    def dims(self) -> tuple[int, ...]:
        """None."""
        return ()

    def part_of(self, full: Tensor) -> Tensor:
        """Return ``full``."""
        return full

    def gather(self, part: Tensor, device: torch.device) -> Tensor:
        """Return the tensor on ``device``: a copy, unless it is there."""
        return part.to(device)


class HostParamState(ParamState):
    """The state of a parameter whose values are on the host."""

    def __init__(self, parameter: Any, device: torch.device) -> None:
        """Make ``parameter`` a view on ``device`` of its values."""
        super().__init__(parameter, parameter.data, WholeLayout(parameter.shape), device)
        self._gathered: list[weakref.ref[Tensor]] = []
        self._local_grad: Tensor | None = None
        self.replace_class()

    def local_grad(self) -> Tensor | None:
        """Return the gradient, on the host."""
        return self._local_grad

    def set_local_grad(self, grad: Tensor | None) -> None:
        """Replace the gradient."""
        self._local_grad = grad

    def set_requires_grad(self, requires_grad: bool) -> None:
        """Do nothing: graphs have the cell's parameter itself."""

    def gather_for_graph(self) -> Tensor:
        """Copy the parameter to the GPU, as a part of the graph."""
        copied: Tensor = CopyToDevice.apply(self.parameter, self.shard)  # type: ignore[no-untyped-call]
        self._gathered = [ref for ref in self._gathered if ref() is not None]
        self._gathered.append(weakref.ref(copied))
        return copied

    def graph_tensors(self) -> list[Tensor]:
        """Return the copies on the GPU that graphs have."""
        return [tensor for ref in self._gathered if (tensor := ref()) is not None]

    def restore_registration(self) -> None:
        """Do nothing: modules keep the cell's parameter."""


class CopyToDevice(torch.autograd.Function):
    """Copies a parameter to the GPU; its gradient is that of the cell's parameter itself."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, shard: TensorShard) -> Tensor:
        """Copy the values; ``leaf`` makes the result require a gradient."""
        return shard.full_tensor().detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient, which ``ParamState.take_early_grad`` finds."""
        return grad, None


class HostParameters:
    """The parameters of all modules that the cell has moved, and that are not split yet."""

    def __init__(self, device: torch.device) -> None:
        """Patch nothing yet.

        Args:
            device: the rank's; modules that move elsewhere do so.
        """
        self._device = device
        self._patches = PatchStack()
        self._states: WeakKeyDictionary[ParamState, None] = WeakKeyDictionary()

    def install(self) -> None:
        """Patch how modules move and change their dtype, until ``remove``."""

        def wrap(plain: Any) -> Any:
            def _apply(module: nn.Module, fn: Convert, recurse: bool = True) -> nn.Module:
                if recurse:
                    for child in module.children():
                        child._apply(fn)
                self._apply_to(module, fn, plain)
                return module

            return _apply

        self._patches.wrap("torch.nn.Module._apply", wrap)

    def remove(self) -> None:
        """Remove the patch, and leave nothing behind that is not plain."""
        self.move_all()
        self.take_back([state.parameter for state in list(self._states)])
        MOVED.clear()
        self._patches.remove()

    def _apply_to(self, module: nn.Module, fn: Convert, plain: Any) -> None:
        """Apply ``fn`` to the parameters and buffers of one module, without its children."""
        waiting = {
            name: parameter
            for name, parameter in module._parameters.items()
            if _is_on_host(parameter) and self._stays_on_host(parameter, fn)
        }
        module._parameters.update(dict.fromkeys(waiting))
        try:
            plain(module, fn, recurse=False)
        finally:
            module._parameters.update(waiting)

    def _stays_on_host(self, parameter: Any, fn: Convert) -> bool:
        """Let ``parameter`` look as after ``fn``, if that has it on the rank's device."""
        state = getattr(parameter, "_param_state", None)
        value, device = parameter.data, parameter.device
        if state is not None:
            value, device = state.shard.local, state.device
        probe = fn(torch.empty((2,) * value.dim(), dtype=value.dtype, device=device))
        stays = probe.device.type == self._device.type
        if state is not None and stays and (probe.dtype, probe.device) == (value.dtype, device):
            return True
        self.take_back([parameter])
        if stays:
            grad, parameter.grad = parameter.grad, None
            parameter.data = value.to(probe.dtype, memory_format=_memory_format(probe))
            parameter.grad = None if grad is None else grad.to(probe.dtype)
            state = HostParamState(parameter, probe.device)
            state.shard.before_gather = self.move_all
            self._states[state] = None
        MOVED.pop(parameter, None)
        return stays

    def take_back(self, parameters: Iterable[Any]) -> None:
        """Make ``parameters`` that are still on the host plain again, there.

        A strategy that splits them finds in ``MOVED`` where the parts go.
        """
        for parameter in parameters:
            state = getattr(parameter, "_param_state", None)
            if isinstance(state, HostParamState):
                values = state.shard.local
                grads = [g for g in (state.local_grad(), state.take_early_grad()) if g is not None]
                make_plain(state, values)
                if grads:
                    parameter.grad = torch.stack([g.to(values.device) for g in grads]).sum(0)
                MOVED[parameter] = state.shard
                del self._states[state]

    def move(self, parameters: Iterable[Any]) -> None:
        """Move those of ``parameters`` to the GPU that ``take_back`` has made plain."""
        for parameter in parameters:
            shard = MOVED.pop(parameter, None)
            if shard is not None:
                parameter.data = parameter.data.to(shard.device)
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.to(shard.device)
                shard.unsharded = parameter.data

    def move_all(self) -> None:
        """Copy all values to the GPU, if that leaves half of its free memory.

        Parameters stay views of them: an operation on one may be running.
        """
        shards = [state.shard for state in list(self._states)]
        if 2 * sum(shard.local.nbytes for shard in shards) < free_memory(self._device):
            for shard in shards:
                shard.local, shard.before_gather = shard.local.to(shard.device), nothing

    def settle(self) -> None:
        """Make parameters plain whose values are on the GPU."""
        parameters = [s.parameter for s in list(self._states) if s.shard.local.device == s.device]
        self.take_back(parameters)
        self.move(parameters)

    def exceed(self, states: Iterable[ParamState]) -> bool:
        """Whether moved parameters, with gradients and two states each, exceed the GPU's memory."""
        nbytes: int = sum(state.parameter.nbytes for state in states if state.was_moved)
        return nbytes > 0 and 4 * nbytes > free_memory(self._device)


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process may still allocate on ``device``; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    fraction: Any = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    allocated = torch.cuda.memory_allocated(device)
    cached = torch.cuda.memory_reserved(device) - allocated
    return min(free + cached, int(total * fraction(device)) - allocated)


def _is_on_host(parameter: Any) -> bool:
    """Whether ``parameter`` is a plain one on the host, or one that a move has left there."""
    if isinstance(getattr(parameter, "_param_state", None), HostParamState):
        return True
    plain = type(parameter) is nn.Parameter and not is_lazy(parameter)
    return plain and bool(parameter.device.type == "cpu")


def _memory_format(tensor: Tensor) -> torch.memory_format:
    """Return the order of dimensions to which a conversion has brought ``tensor``."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim(), torch.contiguous_format)
    is_plain = tensor.is_contiguous() or not tensor.is_contiguous(memory_format=wanted)
    return torch.preserve_format if is_plain else wanted
