"""Calls of sharded modules, with FSDP2's forward hooks around them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_common import is_bw

from nbmgpu.strategies.sequence.parameters import replicated_at
from nbmgpu.strategies.sequence.region import Region
from nbmgpu.strategies.sharding.call_order import CallOrderCheck, end_of_forward, start_of_forward

from .forward_hooks import end_failed_forward, post_forward, pre_forward
from .fsdp_param_group import CellFSDPParamGroup


class ModuleCall:
    """Calls one module that ``fully_shard`` was applied to."""

    def __init__(
        self, module: nn.Module, state: Any, root: Any, position: int, call_order: CallOrderCheck
    ) -> None:
        """Initialize the call.

        Args:
            module: the module.
            state: its ``FSDPState``.
            root: the ``FSDPState`` of its root.
            position: number of the module, the same on all ranks.
            call_order: compares positions over the ranks.
        """
        self.module = module
        self.state = state
        self.root = root
        self.position = position
        self.call_order = call_order
        self.group: CellFSDPParamGroup | None = state._fsdp_param_group
        # A compiled graph ends at these hooks, as at FSDP2's own.
        self.pre_forward = torch.compiler.disable(pre_forward)
        self.post_forward = torch.compiler.disable(post_forward)

    def call(self, original_call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the module between FSDP2's pre-forward and post-forward hooks."""
        group = self.group
        if group is not None and not group.are_registered():
            return original_call(self.module, *args, **kwargs)  # torch.func.functional_call
        name = type(self.module).__name__
        is_outermost = self.state._state_ctx.iter_forward_root is None
        if not is_bw():
            start = start_of_forward(self.position, is_outermost)
            self.call_order.check(start, f"the start of {name}.forward")
        args, kwargs = self.pre_forward(self.state, args, kwargs)
        try:
            with self._replicated():
                output = original_call(self.module, *args, **kwargs)
        except BaseException:
            if not is_bw():
                end_failed_forward(self.root)
            elif is_outermost:  # activation checkpointing ends recomputation by an exception
                self.state._state_ctx.iter_forward_root = None
            raise
        # Where gradients are recorded, the check of ``backward()`` follows.
        if is_outermost and not torch.is_grad_enabled():
            self.call_order.check(end_of_forward(self.position), f"the end of {name}.forward")
        return self.post_forward(self.state, args, output)

    def _replicated(self) -> AbstractContextManager[None]:
        """Sum the gradients over the ranks that each run a part of this call.

        A module around this one has done so for the parameters that it found unsharded.
        """
        region, group = Region.current, self.group
        if region is None or group is None:
            return nullcontext()
        places = [
            place
            for p in group.fsdp_params
            if p.sharded_param.requires_grad
            for place in p.places()
        ]
        return replicated_at(places, region.replicate)
