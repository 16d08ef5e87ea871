"""A ``DeepSpeedEngine`` with ZeRO, and whether it is running."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from nbmgpu.errors import StrategyError, format_message

from .initialization import assign_normal_tensors, initialize_engine
from .parameter_gathering import reset_forward_stack, root_modules

if TYPE_CHECKING:
    from torch.optim import Optimizer


class ZeroEngine:
    """Owns a ``DeepSpeedEngine``.

    While the engine runs, proxies show its own view of the parameters, else the cell's.

    Attributes:
        stage: the ZeRO stage.
        model: the module that DeepSpeed wraps.
        deepspeed: the ``DeepSpeedEngine``, from ``initialize`` on.
        is_destroyed: whether ``destroy`` was called.
    """

    deepspeed: Any

    def __init__(self, modules: list[nn.Module], stage: int) -> None:
        """Prepare an engine for ``modules``, which counts as running until ``exit``."""
        self.stage = stage
        # In a container, DeepSpeed's timing hooks are not on the user's module.  Stage 3 uses them.
        is_single = stage == 3 and len(modules) == 1
        self.model = modules[0] if is_single else nn.ModuleList(modules)
        self.is_destroyed = False
        self._depth = 1

    def initialize(self, optimizer: Optimizer, config: dict[str, Any]) -> None:
        """Create the ``DeepSpeedEngine``, which steps ``optimizer``; collective."""
        self.deepspeed = initialize_engine(self.model, optimizer, config)
        if self.stage == 3:
            assign_normal_tensors(self.optimizer._get_param_coordinator())
            root_modules.append(self.model)

    @property
    def optimizer(self) -> Any:
        """DeepSpeed's ZeRO optimizer."""
        return self.deepspeed.optimizer

    @property
    def is_running(self) -> bool:
        """Whether the engine is running, so that proxies show its view of the parameters."""
        return self._depth > 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to copy a module of stage 3: its hooks refer to this engine."""
        self.check_copy()
        return super().__reduce_ex__(protocol)

    def check_copy(self) -> None:
        """Refuse to copy or pickle a module whose parameters are partitioned.

        Raises:
            StrategyError: the stage is 3, and the copy is the cell's.
        """
        if self.stage == 3 and not self.is_running:
            what = "Under stage 3 of DeepSpeed a model that trains cannot be copied or pickled"
            allowed = (
                "Its parameters are partitioned over the ranks; model.state_dict() gathers them"
            )
            instead = "%%mgpu --strategy deepspeed_stage_2"
            raise StrategyError(format_message(what, allowed, instead))

    def enter(self) -> None:
        """Let proxies show the engine's view, until ``exit``; calls may be nested."""
        self._depth += 1

    def exit(self) -> None:
        """Let proxies show the cell's view again."""
        self._depth -= 1

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let proxies show the engine's view of the parameters."""
        self.enter()
        try:
            yield
        finally:
            self.exit()

    def destroy(self) -> None:
        """Remove DeepSpeed's hooks from the modules, and release its memory."""
        self.is_destroyed = True
        self.deepspeed.destroy()
        if self.stage == 3:
            root_modules[:] = [m for m in root_modules if m is not self.model]
            reset_forward_stack()
