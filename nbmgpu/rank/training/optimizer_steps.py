"""Patches of ``Optimizer.step`` and what belongs to it: strategy and options act at each step.

``step``, ``zero_grad``, ``step`` of schedulers and ``clip_grad_norm_`` are patched in torch's
classes and modules, not on the user's objects.  A scheduler or a gradient scaler may still wrap
``optimizer.step``.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.patches import PatchStack
from nbmgpu.strategies.per_parameter import has_closure

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.loss.diagnostics import LossDiagnostics
    from nbmgpu.rank.metrics.step_metrics import StepMetrics

    from .step_options import StepOptions
    from .trained_objects import TrainedObjects

Observe = Callable[[Optimizer, int], None]

CLIP = "torch.nn.utils.clip_grad.clip_grad_norm_"


class StepPatch:
    """Wraps every optimizer step of the cell.

    Attributes:
        observe: called with each optimizer that is about to step by the gradients that are there,
            and its number.
        reevaluate: called where a closure of a step is called again.
    """

    def __init__(
        self,
        trained: TrainedObjects,
        options: StepOptions,
        diagnostics: LossDiagnostics,
        metrics: StepMetrics,
    ) -> None:
        """Apply the strategy of ``trained`` and ``options`` to each step."""
        self.trained = trained
        self.strategy = trained.strategy
        self.accumulation = options.accumulation
        self.clip_norm = options.clip_norm
        self.diagnostics = diagnostics
        self.metrics = metrics
        self.inside = False
        self.observe: Observe = lambda optimizer, number: None
        self.reevaluate: Callable[[], None] = lambda: None
        self.patches = PatchStack()
        self.original_clip: Callable[..., Tensor] = nn.utils.clip_grad_norm_

    def install(self) -> None:
        """Install the patches."""
        self.trained.registry.on_class = self._patch_step
        self._patch_zero_grad()
        self._patch_clip()
        if self.accumulation.on:
            self._patch_for_accumulation()

    def remove(self) -> None:
        """Restore the classes: those of the cell are sent to the notebook."""
        self.patches.remove()

    def _patch_step(self, cls: type[Optimizer]) -> None:
        """Wrap ``step`` of a class of optimizers."""
        hooked = cls.step
        if hasattr(hooked, "is_patched"):
            return

        @functools.wraps(hooked)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            plain = functools.partial(hooked, optimizer, *args, **kwargs)
            if self.inside or not self._is_of_cell(optimizer):
                return plain()
            self.inside = True
            try:
                return self._step(optimizer, plain)
            finally:
                self.inside = False

        vars(step)["is_patched"] = True
        self.patches.replace("torch.optim.Optimizer.step", step, cls)

    def _is_of_cell(self, optimizer: Optimizer) -> bool:
        """Return whether the cell, and not an engine, has made ``optimizer``."""
        self.trained.prepare_new()
        return any(o is optimizer for unit in self.trained.units for o in unit.optimizers)

    def _step(self, optimizer: Optimizer, plain: functools.partial[Any]) -> Any:
        if not self.accumulation.takes_step():
            return None
        if not self.trained.options.loss_scale.takes_step(optimizer, plain):
            return None
        if self.clip_norm is not None:
            units = (unit for unit in self.trained.units if optimizer in unit.optimizers)
            self._clip([p for unit in units for p in unit.parameters()], self.clip_norm)
        number = self.trained.number_of(optimizer)
        observe = functools.partial(self.observe, optimizer, number or 0)
        if has_closure(plain.args[1:], plain.keywords):  # there are no gradients yet
            plain = _observing(plain, observe, self.reevaluate)
        else:
            observe()
        result = self.strategy.step(optimizer, plain)
        self.trained.shard_report.after_step(self.trained.units)
        self.diagnostics.check_repeated_step(optimizer)
        self.metrics.record_optimizer_step(optimizer, number)
        return result

    def _patch_zero_grad(self) -> None:
        plain = Optimizer.zero_grad

        @functools.wraps(plain)
        def zero_grad(optimizer: Optimizer, set_to_none: bool = True) -> None:
            call = functools.partial(plain, optimizer, set_to_none)
            if self.inside:
                call()
            elif not self.accumulation.keeps_gradients:
                self.strategy.zero_grad(optimizer, call)

        self.patches.replace("torch.optim.Optimizer.zero_grad", zero_grad)

    def _patch_clip(self) -> None:
        plain = self.original_clip

        @functools.wraps(plain)
        def clip_grad_norm_(
            parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
            error_if_nonfinite: bool = False, foreach: bool | None = None,
        ) -> Tensor:  # fmt: skip
            given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            return self._clip(given, max_norm, norm_type, error_if_nonfinite, foreach)

        # torch.nn.utils and torch.nn.utils.clip_grad both have it.
        self.patches.replace_in(CLIP, clip_grad_norm_, _modules_above(CLIP))

    def _clip(
        self, parameters: list[Any], max_norm: float, norm_type: float = 2.0,
        error_if_nonfinite: bool = False, foreach: bool | None = None,
    ) -> Tensor:  # fmt: skip
        # While gradients accumulate, their norm is computed and they stay as they are.
        limit = float(max_norm) if self.accumulation.is_step_due else float("inf")
        clip = functools.partial(
            self.original_clip, max_norm=limit, norm_type=norm_type,
            error_if_nonfinite=error_if_nonfinite, foreach=foreach,
        )  # fmt: skip
        return self.strategy.clip_grad_norm(parameters, limit, norm_type, clip)

    def _patch_for_accumulation(self) -> None:
        """Skip ``Module.zero_grad`` and schedulers' steps while gradients accumulate."""
        accumulation = self.accumulation
        clear, scaled = nn.Module.zero_grad, torch.amp.GradScaler.step

        @functools.wraps(clear)
        def zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
            if not accumulation.keeps_gradients:
                clear(module, set_to_none)

        @functools.wraps(scaled)
        def scaler_step(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                what = "--accumulate does not go with a GradScaler of the cell's own"
                raise StrategyError(
                    format_message(what, instead="--precision fp16, without a GradScaler")
                )
            return scaled(scaler, *args, **kwargs)

        self.patches.replace("torch.nn.Module.zero_grad", zero_grad)
        self.patches.replace("torch.amp.GradScaler.step", scaler_step)
        for cls in _schedulers(LRScheduler):
            if "step" in vars(cls):
                self.patches.wrap("torch.optim.lr_scheduler.LRScheduler.step", self._skipping, cls)

    def _skipping(self, step: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(step)
        def scheduler_step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if not self.accumulation.skipped_step:
                step(scheduler, *args, **kwargs)

        return scheduler_step


def _observing(
    step: functools.partial[Any], first: Callable[[], None], later: Callable[[], None]
) -> functools.partial[Any]:
    """Return ``step`` with closures that call ``first`` after the first call, then ``later``."""
    actions = itertools.chain([first], itertools.repeat(later))

    def wrap(value: Any) -> Any:
        if not callable(value):
            return value

        @functools.wraps(value)
        def closure(*args: Any, **kwargs: Any) -> Any:
            loss = value(*args, **kwargs)
            next(actions)()
            return loss

        return closure

    named = {name: wrap(value) for name, value in step.keywords.items()}
    return functools.partial(step.func, *map(wrap, step.args), **named)


def _schedulers(cls: type[LRScheduler]) -> list[type[LRScheduler]]:
    """Return ``cls`` and all of its subclasses."""
    return [cls, *(inner for child in cls.__subclasses__() for inner in _schedulers(child))]


def _modules_above(target: str) -> list[ModuleType]:
    """Return the module of a function and the packages that contain it."""
    parts = target.split(".")[:-1]
    return [sys.modules[".".join(parts[:depth])] for depth in range(len(parts), 0, -1)]
