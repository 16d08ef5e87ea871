"""Gathering and partitioning parameters of stage 3 outside of DeepSpeed's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .call_order import DIFFERENT_MODULES, DIFFERENT_STEPS, FORWARD, check_same_on_all_ranks
from .initialization import inference_mode_disabled

if TYPE_CHECKING:
    from torch import Tensor

    from .original_modules import OriginalModules
    from .zero_engine import ZeroEngine

KEEP_GATHERED = -1
"""Id in ``ds_active_sub_modules`` that keeps DeepSpeed from releasing a gathered parameter."""


class ParameterGathering:
    """Gathers an engine's parameters when the cell accesses them.

    DeepSpeed's own hooks gather them for the modules' forward and backward passes.

    Attributes:
        is_gathered: whether all parameters are gathered until the next step.
        awaits_backward: whether a forward pass has run whose backward pass has not.
    """

    def __init__(
        self, engine: ZeroEngine, originals: OriginalModules, roots: list[nn.Module]
    ) -> None:
        """Register hooks that check the order of calls, before DeepSpeed registers its own.

        Args:
            engine: the engine that partitions the parameters.
            originals: all modules and parameters.
            roots: the outermost modules.
        """
        self.engine = engine
        self.parameters = originals.parameters
        self.is_gathered = False
        self.awaits_backward = False
        modules = originals.modules
        self._index = {id(m): i for i, m in enumerate(modules)}
        owners = [m for m in modules if any(p is not None for p in m._parameters.values())]
        # DeepSpeed's hook of the outermost module starts with a broadcast.
        self.hooks = [m.register_forward_pre_hook(self._check_start) for m in roots]
        self.hooks += [m.register_forward_pre_hook(self._check_module) for m in owners]

    def _check_start(self, module: nn.Module, args: Any) -> None:
        """Check that all ranks start this forward pass, also one of an evaluation."""
        if not self.engine.is_running:
            check_same_on_all_ranks(FORWARD - self._index[id(module)], DIFFERENT_STEPS)

    def _check_module(self, module: nn.Module, args: Any) -> None:
        """Check that all ranks run this module next."""
        if torch.is_grad_enabled() and not self.engine.is_running:
            check_same_on_all_ranks(self._index[id(module)], DIFFERENT_MODULES)

    def on_access(self, parameters: list[Any], writes: bool) -> None:
        """Gather for the cell, which is about to read or write ``parameters``; collective."""
        if self.engine.is_running:
            return
        in_forward = is_in_forward()
        if in_forward and torch.is_grad_enabled():
            self.awaits_backward = True
        # In a forward pass the engine's hooks have gathered what the module owns, for reading.
        readable = (
            in_forward and not writes and all(p.ds_status.name == "AVAILABLE" for p in parameters)
        )
        if not self.is_gathered and not readable:
            self.gather()

    def gather(self) -> None:
        """Gather all parameters and keep them gathered until the next step; collective."""
        with self.engine.running(), inference_mode_disabled():
            parameters: list[Any] = self.parameters
            if any(p.ds_status.name == "INFLIGHT" for p in parameters):
                self.engine.optimizer._partition_all_parameters()
            missing = [p for p in parameters if p.ds_status.name == "NOT_AVAILABLE"]
            if missing:
                missing[0].all_gather(param_list=missing)
            for parameter in parameters:
                parameter.ds_active_sub_modules.add(KEEP_GATHERED)
        self.is_gathered = True

    def partition(self) -> None:
        """Partition the parameters again, with the values that the cell has written."""
        if not self.is_gathered:
            return
        with self.engine.running(), inference_mode_disabled():
            parameters: list[Any] = self.parameters
            for parameter in parameters:
                parameter.ds_active_sub_modules.clear()
                parameter.partition(has_been_updated=True)
        self.is_gathered = False

    def meta_tensor(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a meta tensor with the full shape of ``parameter``; None while it is gathered."""
        partitioned: Any = parameter
        if self.engine.is_running or partitioned.ds_status.name == "AVAILABLE":
            return None
        return torch.empty(partitioned.ds_shape, dtype=partitioned.dtype, device="meta")


root_modules: list[nn.Module] = []
"""Models of the engines of stage 3; DeepSpeed's forward stack has them at its bottom."""


def is_in_forward() -> bool:
    """Whether a forward pass of a module of stage 3 is running."""
    from deepspeed.runtime.zero import parameter_offload

    return len(parameter_offload.FWD_MODULE_STACK) > len(root_modules)


def reset_forward_stack() -> None:
    """Remove modules from DeepSpeed's forward stack that a failed forward pass has not removed."""
    from deepspeed.runtime.zero import parameter_offload

    parameter_offload.FWD_MODULE_STACK[:] = root_modules
