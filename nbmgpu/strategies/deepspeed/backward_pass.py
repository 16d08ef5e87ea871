"""Backward passes of the cell as backward passes of DeepSpeed's engine."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from nbmgpu.errors import StrategyError, format_message

from .call_order import DIFFERENT_GRADIENTS, LARGEST_MODULE, check_same_on_all_ranks
from .parameter_gathering import reset_forward_stack

if TYPE_CHECKING:
    from torch import nn

    from .engine_wrapper import EngineWrapper

REPEATED_GRADIENT = (
    "A parameter got its gradient twice in one backward pass, as under reentrant checkpoints",
    "DeepSpeed averages a gradient as soon as it arrives",
    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or --strategy ddp",
)


class BackwardPass:
    """Runs the engine's work before and after ``loss.backward()``."""

    def __init__(self, wrapper: EngineWrapper) -> None:
        """Register hooks that record gradients, before DeepSpeed's own, which remove them."""
        self.wrapper = wrapper
        self._arrived: list[nn.Parameter] = []
        self._arrived_ids: set[int] = set()
        self.hooks = [
            p.register_post_accumulate_grad_hook(self._record) for p in wrapper.trained.parameters
        ]

    def _record(self, parameter: nn.Parameter) -> None:
        if id(parameter) in self._arrived_ids:
            raise StrategyError(format_message(*REPEATED_GRADIENT))
        self._arrived_ids.add(id(parameter))
        self._arrived.append(parameter)

    def begin(self) -> None:
        """Prepare the engine for gradients."""
        wrapper, gathering = self.wrapper, self.wrapper.gathering
        self._arrived = []
        self._arrived_ids = set()
        if gathering is not None:
            reset_forward_stack()
            if not gathering.awaits_backward and not gathering.is_gathered:
                gathering.gather()  # the forward pass ran on full parameters, before the engine
        wrapper.engine.enter()
        engine = wrapper.engine.deepspeed
        engine.optimizer.clear_backward_seen_flag()
        # What engine.backward(loss) does before it calls loss.backward().
        engine._running_engine_backward = True
        engine._backward_prologue()

    def end(self, loss_scale: float) -> None:
        """Let the engine average the gradients, and accumulate them unscaled; collective."""
        wrapper = self.wrapper
        engine, optimizer = wrapper.engine.deepspeed, wrapper.engine.optimizer
        try:
            self._check_order()
            if self._arrived:
                engine._backward_epilogue()
                averaged = wrapper.layout.averaged_gradients()
                wrapper.gradients.accumulate(self._arrived, averaged, loss_scale)
            else:
                optimizer.backward_epilogue()
                optimizer.exit_backward()
            self.clear_gradients()
            if wrapper.gathering is not None:
                wrapper.gathering.awaits_backward = False
            model, stage = wrapper.engine.model, wrapper.engine.stage
            if stage == 3 and model not in wrapper.trained.unit.modules:
                # The container is not called; its forward pass would start the next iteration.
                optimizer._get_param_coordinator().reset_step()
        finally:
            engine._running_engine_backward = False
            wrapper.engine.exit()

    def _check_order(self) -> None:
        """Check that all ranks got the same gradients, below stage 3 in the same order."""
        index = {id(p): i for i, p in enumerate(self.wrapper.trained.parameters)}
        order = [index[id(p)] for p in self._arrived]
        if self.wrapper.engine.stage == 3:
            order = sorted(order)
        number = zlib.crc32(repr(order).encode()) + LARGEST_MODULE
        check_same_on_all_ranks(number, DIFFERENT_GRADIENTS)

    def clear_gradients(self) -> None:
        """Clear the engine's gradients, so that its next backward pass does not accumulate."""
        optimizer = self.wrapper.engine.optimizer
        optimizer.zero_grad(set_to_none=True)
        optimizer._epilogue_ran_this_backward = False
        if self.wrapper.engine.stage == 3:
            optimizer.micro_step_id = 0
            optimizer._offload_boundary_param_ids = set()
        else:
            optimizer.micro_step_id = -1  # its INITIAL_MICRO_STEP_ID
            optimizer._offload_accumulated_param_ids = set()
