"""Two devices on a machine without a GPU: ``cpu:0`` and ``cpu:1``.

torch gives both the same memory, and ``tensor.device`` is ``cpu`` for both, but a tensor that moves
to ``cpu:1`` is copied.  Under ``SeparateDevices`` these copies are on another device, and operators
fail where those of two GPUs would.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nbmgpu.strategies.base import RankContext
from nbmgpu.strategies.mp import ModelParallel
from nbmgpu.strategies.strategy_options import StrategyOptions

HOST = torch.device("cpu")
DEVICES = (torch.device("cpu", 0), torch.device("cpu", 1))

SOURCE = """
import dataclasses
import torch
from nbmgpu.strategies.mp import ModelParallel

class TwoDevices(ModelParallel):
    profile = dataclasses.replace(ModelParallel.profile, name="mp_on_two_devices", aliases=())

    def __init__(self, context):
        super().__init__(context, [torch.device("cpu", 0), torch.device("cpu", 1)])
"""
"""A module of another package, with ``mp`` on these devices."""


def model_parallel(notices: dict[str, str] | None = None) -> ModelParallel:
    """Return ``mp`` on these devices, in this process; release it."""
    given = {} if notices is None else notices
    mesh: Any = None  # it has one process
    context = RankContext(0, 1, mesh, "cpu", StrategyOptions(), given.setdefault)
    return ModelParallel(context, DEVICES)


class SeparateDevices(TorchFunctionMode):
    """Tensors have one of these devices, or are on the host; forward passes alone.

    ``tensor.device`` is where a tensor has been copied or created, or where the operator's inputs
    were.  Tensors of several devices are an error, as on GPUs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operators = _Operators()

    def __enter__(self) -> Any:
        self._operators.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operators.__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer where a tensor is, and copy it where it has to be."""
        named, places = kwargs or {}, self._operators
        if func == torch.Tensor.device.__get__:
            return places.device_of(args[0])
        inputs = [t for t in tree_leaves((args, named)) if isinstance(t, Tensor)]
        places.created_on = next((places.device_of(t) for t in inputs), HOST)
        result = func(*args, **named)
        places.created_on = HOST
        if func == torch.Tensor.to:
            target = _target(*args[1:], **named)
            if target is not None and target != places.device_of(args[0]):
                result = result.clone() if result is args[0] else result
                places.put(result, target)
        elif isinstance(result, Tensor) and named.get("device") is not None:
            places.put(result, torch.device(named["device"]))
        return result


def _target(*args: Any, copy: bool = False, **kwargs: Any) -> torch.device | None:
    """Return the device in the arguments of ``Tensor.to``."""
    device: torch.device | None = torch._C._nn._parse_to(*args, **kwargs)[0]
    return device


class _Operators(TorchDispatchMode):
    """Follows tensors through operators.

    Attributes:
        created_on: the device of tensors that an operator creates from none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.created_on = HOST
        self._devices: dict[int, torch.device] = {}
        self._alive: list[Any] = []  # their memory must not be used again

    def device_of(self, tensor: Tensor) -> torch.device:
        return self._devices.get(tensor.untyped_storage().data_ptr(), HOST)

    def put(self, tensor: Tensor, device: torch.device) -> None:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._devices[storage.data_ptr()] = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        inputs = [t for t in tree_leaves((args, named)) if isinstance(t, Tensor)]
        known = {t.untyped_storage().data_ptr() for t in inputs}
        result = func(*args, **named)
        if func is torch.ops.aten.copy_.default:
            return result
        found = {self.device_of(t) for t in inputs if t.dim()}
        if func is torch.ops.aten.index.Tensor:  # indices may be on the host
            found = {self.device_of(args[0])}
        if len(found) > 1:
            raise RuntimeError(f"Expected all tensors to be on the same device: {func}, {found}")
        device = next(iter(found), self.device_of(inputs[0]) if inputs else self.created_on)
        for output in (t for t in tree_leaves(result) if isinstance(t, Tensor)):
            if device != HOST and output.untyped_storage().data_ptr() not in known:
                self.put(output, device)
        return result
