"""The cell's optimizer steps, wherever they are called: the strategy's and the options' turn.

Steps, ``zero_grad``, schedulers' steps and ``clip_grad_norm_`` are met at the classes and
functions of torch, not at the user's objects, so that these stay what they are: a
scheduler or a gradient scaler may wrap ``optimizer.step`` as it likes.
"""

from __future__ import annotations

import functools
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

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.session import Session

CLIP = "torch.nn.utils.clip_grad.clip_grad_norm_"


class StepTap:
    """Stands before every step of the cell, for the rest of this process."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``."""
        self.session = session
        self.inside = False
        self.patches = PatchStack()
        self.clip: Callable[..., Tensor] = nn.utils.clip_grad_norm_

    def install(self) -> None:
        """Put the tap in place."""
        self.session.watch.on_class = self._meet
        self._install_zero_grad()
        self._install_clip()
        if self.session.accumulation.on:
            self._install_pauses()

    def remove(self) -> None:
        """Give classes their own ``step`` back: those of the cell travel to the notebook."""
        self.patches.remove()

    def _meet(self, cls: type[Optimizer]) -> None:
        """Stand before ``step`` of a class of optimizers."""
        hooked = cls.step
        if hasattr(hooked, "tapped"):
            return

        @functools.wraps(hooked)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            plain = functools.partial(hooked, optimizer, *args, **kwargs)
            if self.inside or not self._is_cells(optimizer):
                return plain()
            self.inside = True
            try:
                return self._step(optimizer, plain)
            finally:
                self.inside = False

        vars(step)["tapped"] = True
        self.patches.replace("torch.optim.Optimizer.step", step, cls)

    def _is_cells(self, optimizer: Optimizer) -> bool:
        """Tell the cell's optimizers from those that an engine makes for itself."""
        session = self.session
        session.activate()
        return any(o is optimizer for unit in session.units for o in unit.optimizers)

    def _step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        session = self.session
        if not session.accumulation.takes_step():
            return None
        if not session.shaping.scale.takes_step(optimizer, plain):
            return None
        clip = session.clips_at
        if clip is not None:
            self._clip([p for u in session.units if optimizer in u.optimizers
                        for p in u.parameters()], clip)  # fmt: skip
        result = session.strategy.step(optimizer, plain)
        session.note_step(optimizer)
        return result

    def _install_zero_grad(self) -> None:
        plain = Optimizer.zero_grad

        @functools.wraps(plain)
        def zero_grad(optimizer: Optimizer, set_to_none: bool = True) -> None:
            call = functools.partial(plain, optimizer, set_to_none)
            if self.inside:
                call()
            elif not self.session.accumulation.open:
                self.session.strategy.zero_grad(optimizer, call)

        self.patches.replace("torch.optim.Optimizer.zero_grad", zero_grad)

    def _install_clip(self) -> None:
        plain = self.clip

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
        # While gradients accumulate they are looked at, and left as they are.
        limit = float(max_norm) if self.session.accumulation.closes else float("inf")
        return self.session.strategy.clip_grad_norm(
            parameters, limit, norm_type,
            lambda chosen: self.clip(chosen, limit, norm_type, error_if_nonfinite, foreach),
        )  # fmt: skip

    def _install_pauses(self) -> None:
        """Let what follows a step, or goes with it, wait while gradients accumulate."""
        accumulation = self.session.accumulation
        clear, scaled = nn.Module.zero_grad, torch.amp.GradScaler.step

        @functools.wraps(clear)
        def zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
            if not accumulation.open:
                clear(module, set_to_none)

        @functools.wraps(scaled)
        def scaler_step(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                what = "--accumulate does not go with a GradScaler of the cell's own"
                raise StrategyError(format_message(what, instead="--precision fp16, without a GradScaler"))
            return scaled(scaler, *args, **kwargs)

        self.patches.replace("torch.nn.Module.zero_grad", zero_grad)
        self.patches.replace("torch.amp.GradScaler.step", scaler_step)
        for cls in _schedulers(LRScheduler):
            if "step" in vars(cls):
                self.patches.wrap("torch.optim.lr_scheduler.LRScheduler.step", self._paused, cls)

    def _paused(self, step: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(step)
        def paused(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if not self.session.accumulation.skipped:
                step(scheduler, *args, **kwargs)

        return paused


def _schedulers(cls: type[LRScheduler]) -> list[type[LRScheduler]]:
    """Return ``cls`` and all classes below it."""
    return [cls, *(inner for child in cls.__subclasses__() for inner in _schedulers(child))]


def _modules_above(target: str) -> list[ModuleType]:
    """Return the module of a function and the packages that contain it."""
    parts = target.split(".")[:-1]
    return [sys.modules[".".join(parts[:depth])] for depth in range(len(parts), 0, -1)]
