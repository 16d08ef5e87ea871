"""Parameters of stage 3, between lying on all ranks and being whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbmgpu.errors import SAME_STEPS_HINT

from .initialization import inference_mode_disabled

if TYPE_CHECKING:
    from torch import Tensor

    from .engine_wrapper import Home

OPEN = -1
"""Stands among the modules that use a parameter of stage 3, so that it is not released."""

START = 1 << 39
BACKWARD = 1 << 40
END_OF_CELL = 1 << 41
"""Numbers for calls that ranks compare, beside those of modules."""

STEPS = (
    "Ranks did different numbers of steps: not all of them are at the same forward or backward pass",
    "Stage 3 of DeepSpeed runs each forward and backward pass on all ranks together",
    SAME_STEPS_HINT,
)
ANOTHER_WAY = (
    "The forward pass takes another way through the model on another rank",
    "Under stage 3 of DeepSpeed all ranks must use the same modules in the same order",
    "%%mgpu --strategy ddp",
)


class Gathering:
    """Brings the parameters of an engine together when the cell looks at them.

    DeepSpeed's own hooks bring them for the modules' forward and backward passes.
    """

    def __init__(self, home: Home, modules: list[nn.Module], held: list[nn.Parameter]) -> None:
        """Serve ``home``, whose modules hold the parameters ``held``."""
        self.home = home
        self.held = held
        self.opened = False
        self.used = False
        self._numbers = {id(m): i for i, m in enumerate(modules)}
        owners = [m for m in modules if any(p is not None for p in m._parameters.values())]
        # Before DeepSpeed's own hooks: that of the outermost module begins with a broadcast.
        outermost = home.unit.modules
        self.hooks = [m.register_forward_pre_hook(self.consent_to_start) for m in outermost]
        self.hooks += [m.register_forward_pre_hook(self.consent) for m in owners]
        self.hooks += [m.register_forward_hook(self.consent_to_end) for m in home.unit.modules]

    def consent(self, module: nn.Module, args: Any) -> None:
        """Refuse a forward pass that takes another way on another rank: it would hang."""
        if torch.is_grad_enabled() and not self.home.busy:
            self.home.same(self._numbers[id(module)], ANOTHER_WAY)

    def consent_to_start(self, module: nn.Module, args: Any) -> None:
        """Refuse a forward pass that does not begin on all ranks, also one of an evaluation."""
        if not self.home.busy:
            self.home.same(START - self._numbers[id(module)], STEPS)

    def consent_to_end(self, module: nn.Module, args: Any, output: Any) -> None:
        """Refuse a forward pass that is over here, and goes on elsewhere."""
        if torch.is_grad_enabled() and not self.home.busy:
            self.home.same(-1 - self._numbers[id(module)], ANOTHER_WAY)

    def touch(self, parameters: list[Any], writes: bool) -> None:
        """Bring the parameters of stage 3 together, if the cell and not the engine asks."""
        if self.home.busy:
            return
        within = forward_under_way()
        if within and torch.is_grad_enabled():
            self.used = True
        # In a forward pass the engine's hooks have brought what the modules own, to be read.
        brought = within and not writes
        if not self.opened and not (
            brought and all(p.ds_status.name == "AVAILABLE" for p in parameters)
        ):
            self.open()

    def open(self) -> None:
        """Let all parameters of stage 3 be whole until the next step; collective."""
        with self.home.inside(), inference_mode_disabled():
            held: list[Any] = self.held
            if any(p.ds_status.name == "INFLIGHT" for p in held):
                self.home.engine.optimizer._partition_all_parameters()
            missing = [p for p in held if p.ds_status.name == "NOT_AVAILABLE"]
            if missing:
                missing[0].all_gather(param_list=missing)
            for parameter in held:
                parameter.ds_active_sub_modules.add(OPEN)
        self.opened = True

    def close(self) -> None:
        """Partition the parameters again, with what the cell has written into them."""
        if not self.opened:
            return
        with self.home.inside(), inference_mode_disabled():
            for parameter in self.held:
                held: Any = parameter
                held.ds_active_sub_modules.clear()
                held.partition(has_been_updated=True)
        self.opened = False

    def shape_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a tensor without memory that has the shape of a partitioned parameter."""
        held: Any = parameter
        if self.home.busy or held.ds_status.name == "AVAILABLE":
            return None
        return torch.empty(held.ds_shape, dtype=held.dtype, device="meta")


roots: list[nn.Module] = []
"""The modules of engines of stage 3.  Each stands at the bottom of DeepSpeed's stack."""


def forward_under_way() -> bool:
    """Tell whether the forward pass of a module of stage 3 is under way."""
    from deepspeed.runtime.zero import parameter_offload

    return len(parameter_offload.FWD_MODULE_STACK) > len(roots)


def forget_forward() -> None:
    """Take modules off DeepSpeed's stack that a failed forward pass has left there."""
    from deepspeed.runtime.zero import parameter_offload

    parameter_offload.FWD_MODULE_STACK[:] = roots
