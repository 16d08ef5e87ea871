"""The strategy ``mp``: the layers of a model are spread over the devices of one process.

It is what a ``device_map`` does in Hugging Face's libraries.  The devices take turns: it is for
models that are too large for one of them, and for inference.  ``pp`` and ``fsdp`` keep all devices
busy.  With fewer than two GPUs the cell runs as in the notebook.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.formatting import format_bytes
from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext, Strategy, Unit
from nbmgpu.strategies.profile import Profile

from .device_map import DeviceMap, automatic_map, given_map, own_tensors
from .module_calls import ModuleCalls, outermost
from .module_moves import ModuleMoves
from .placement import Placement

ONE_DEVICE = (
    "mp spreads the layers of a model over the GPUs that one process sees. Here it sees {count}, "
    "so nothing is spread: the cell runs as on one device, with its numbers."
)
NOT_SPREAD = (
    "mp has spread nothing over {count} devices: it found no model with layers for two of them."
)
IDLE = (
    "mp runs one device at a time: in the model's forward passes, {shares}. So each was idle for "
    "{idle:.0%} of the time on average. pp overlaps them: %%mgpu --strategy pp"
)


class ModelParallel(Strategy):
    """One process, and each layer on one of its devices."""

    profile: ClassVar[Profile] = profiles.MP
    drops_units: ClassVar[bool] = True
    refuses_lightning: ClassVar[str] = "Lightning moves the whole model to one device"

    def __init__(self, context: RankContext, devices: Sequence[torch.device] | None = None) -> None:
        """Use ``devices``; by default the GPUs that this process sees."""
        super().__init__(context)
        if devices is None:
            on_gpu = self.device.startswith("cuda")
            count = torch.cuda.device_count() if on_gpu else 0
            devices = [torch.device("cuda", index) for index in range(count)]
        self.devices = list(devices)
        self._units: list[Unit] = []
        self._placement = Placement()
        self._calls: ModuleCalls | None = None
        if len(self.devices) < 2:
            visible = "one GPU" if self.devices else "none"
            self.notice("model-parallel", ONE_DEVICE.format(count=visible))
            return
        self._calls = ModuleCalls(self.devices, self._spread)
        self._calls.install()
        self._moves = ModuleMoves(self.devices[0].type, self._move, self._calls.forget)
        self._moves.install()

    def prepare(self, units: list[Unit]) -> None:
        """Spread the modules, and put optimizer states where their parameters are.

        Raises:
            StrategyError: an optimizer computes with all parameters as one vector.
        """
        if self._calls is None:
            return
        self._units = units
        for unit in units:
            for module in unit.modules:
                self._spread(module)
            for optimizer in unit.optimizers:
                self._check_optimizer(optimizer)
                self._placement.put_states(optimizer)

    def drop_units(self) -> None:
        """Drop all references to units."""
        self._units = []

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        devices = {self._placement.device_of(parameter) for parameter in parameters}
        if isinstance(optimizer, LBFGS) and len(devices) > 1:
            raise StrategyError(
                format_message(
                    f"LBFGS computes with all parameters as one vector, and mp has them on "
                    f"{len(devices)} devices",
                    "Optimizers that update each parameter separately, such as Adam or SGD",
                    "%%mgpu --strategy ddp",
                )
            )

    def _spread(self, root: nn.Module) -> None:
        """Put each layer of ``root`` on its device, if that has not been done.

        Raises:
            StrategyError: it cannot be put on several devices.
        """
        assert self._calls is not None
        modules = list(root.modules())
        if all(self._calls.routes.get(module) is not None for module in modules):
            return
        tensors = [tensor for module in modules for tensor in own_tensors(module)]
        if not tensors or any(map(is_lazy, tensors)):
            return
        device_map = self._map(root)
        for module, route in device_map.routes.items():
            for tensor in own_tensors(module):
                self._placement.put(tensor, route.device)
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # cuDNN wants them in one piece of memory
            self._calls.routes[module] = route
        self._say_where(root, device_map)

    def _map(self, root: nn.Module) -> DeviceMap:
        """Choose the devices of ``root``; models that Hugging Face has spread keep theirs."""
        given: dict[int, torch.device] = {}
        for module in root.modules():
            names = getattr(module, "hf_device_map", None) or {}
            if len(set(names.values())) > 1:
                device_map = given_map(module, names, self.devices[0].type)
                if module is root:
                    return device_map
                for inner, route in device_map.routes.items():
                    given.update((id(tensor), route.device) for tensor in own_tensors(inner))

        def device_of(tensor: Tensor) -> torch.device | None:
            return given.get(id(tensor), self._placement.device_of(tensor))

        return automatic_map(root, self.devices, device_of)

    def _move(self, module: nn.Module, device: torch.device) -> None:
        """Spread a module that the cell moves to ``device``, where it comes back in the end."""
        self._spread(outermost(module))
        for tensor in (*module.parameters(), *module.buffers()):
            self._placement.put(tensor, self._placement.device_of(tensor) or device, device)

    def _say_where(self, root: nn.Module, device_map: DeviceMap) -> None:
        """Show which layers are on which device."""
        nbytes: Counter[torch.device] = Counter()
        for tensor, device in {
            tensor: route.device
            for module, route in device_map.routes.items()
            for tensor in own_tensors(module)
        }.items():
            nbytes[device] += tensor.nbytes
        layers: dict[torch.device, list[str]] = {device: [] for device in nbytes}
        for device, parts in itertools.groupby(device_map.parts, key=lambda part: part[1]):
            names = [name for name, _ in parts]
            both = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            layers.setdefault(device, []).append(both)
        places = [
            f"{device} has {' and '.join(names)} ({format_bytes(nbytes[device])})"
            for device, names in layers.items()
        ]
        if len(places) > 1:
            text = f"mp has put the layers of {type(root).__name__} on {len(places)} devices: "
            self.notice("model-parallel", text + ", ".join(places) + ".")

    def begin_backward(self, backward: Backward) -> None:
        """Do nothing: autograd follows the graph through the devices."""

    def end_backward(self, backward: Backward) -> None:
        """Do nothing."""

    def explain(self, error: BaseException) -> str:
        """Return what torch's error about several devices means under this strategy."""
        if self._calls is None or "on the same device" not in str(error):
            return ""
        return (
            "Under mp, each layer has its parameters on one of several devices. The outputs of a "
            "layer come back to the code that calls it, but this code uses a parameter without "
            "calling its layer, or keeps tensors of several layers. Try: call the layer, or "
            "x.to(other.device), or %%mgpu --strategy fsdp"
        )

    def finish(self) -> None:
        """Say how long each device was idle."""
        if self._calls is None:
            return
        devices = {route.device for route in self._calls.routes.values() if route is not None}
        if len(devices) < 2:
            self.notice("not-spread", NOT_SPREAD.format(count=len(self.devices)))
            return
        shares = self._calls.busy.shares()
        if shares:
            each = zip(self.devices, shares, strict=True)
            busy = ", ".join(f"{device} was busy {share:.0%} of the time" for device, share in each)
            idle = 1 - sum(shares) / len(shares)
            self.notice("idle-devices", IDLE.format(shares=busy, idle=idle))

    def release(self) -> None:
        """Remove the patches, and put everything where it was."""
        if self._calls is not None:
            self._calls.remove()
            self._moves.remove()
            self._placement.restore(o for unit in self._units for o in unit.optimizers)
