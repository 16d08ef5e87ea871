"""``--precision``: the dtype of the forward pass.

The outermost trained modules run under autocast and return float32, as with accelerate.  What the
cell computes from their outputs, such as the loss, stays float32.  With fp16 gradients may
underflow, so the gradient that starts a backward pass is multiplied by a scale, and gradients are
divided by it right after the pass.  The scale is a power of two, so ``.grad`` has the same values
as without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices
from nbmgpu.strategies.half_precision import HALF_DTYPES

from .gradient_accumulation import local

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.strategies.base import Unit

GROWS_AFTER = 2000
"""Steps without overflow after which the scale doubles, as in ``torch.amp.GradScaler``."""


class Autocast:
    """Wraps a forward pass of a module."""

    def __init__(self, precision: str, device: str, recorder: Recorder) -> None:
        """Compute in ``precision`` (fp32, bf16 or fp16) on ``device``."""
        self.dtype = HALF_DTYPES.get(precision)
        self.device = torch.device(device).type
        self.recorder = recorder

    def __call__(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run ``forward`` and return its output in float32."""
        if self.dtype is not None:
            with torch.autocast(self.device, self.dtype):
                return to_float32(forward(*args, **kwargs))
        if torch.is_autocast_enabled(self.device):
            self.recorder.notice("autocast-off", notices.AUTOCAST_OFF)
            args, kwargs = to_float32(args), to_float32(kwargs)
        with torch.autocast(self.device, enabled=False):
            return forward(*args, **kwargs)


def to_float32(value: Any) -> Any:
    """Convert tensors of half precision in ``value`` to float32, also inside containers."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_DTYPES.values() else value
    if isinstance(value, Mapping):
        kind: Any = type(value)
        return kind({key: to_float32(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        inner = [to_float32(item) for item in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return value


class LossScale:
    """The scale of losses under fp16, and the steps to skip because of an overflow.

    Initial value, growth and backoff are those of ``torch.amp.GradScaler``.

    Attributes:
        on: whether losses are scaled at all.
        value: the factor of losses; 1 if they are not scaled.
    """

    def __init__(self, on: bool) -> None:
        """Scale nothing unless ``on``."""
        self.on = on
        self.value = 2.0**16 if on else 1.0
        self._steps_without_overflow = 0
        self._stepped: bool | None = None
        self._overflows: dict[int, Tensor] = {}

    def begin(self, units: list[Unit]) -> None:
        """Scale gradients that exist already; before a backward pass."""
        if not self.on:
            return
        self._update()
        for unit in units:
            _multiply(_gradients(unit.parameters()), self.value)

    def _update(self) -> None:
        """Change the scale after the steps since the last backward pass."""
        if self._stepped is False:
            self.value, self._steps_without_overflow = self.value / 2, 0
        elif self._stepped:
            self._steps_without_overflow += 1
            if self._steps_without_overflow == GROWS_AFTER:
                self.value, self._steps_without_overflow = self.value * 2, 0
        self._stepped = None

    def state_dict(self) -> dict[str, float]:
        """Return the scale between two steps; empty if there is none."""
        if not self.on:
            return {}
        self._update()
        return {"scale": self.value, "growth_tracker": self._steps_without_overflow}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on with the scale that ``state_dict`` has returned, if both have one."""
        if self.on and state:
            self.value = state["scale"]
            self._steps_without_overflow = int(state["growth_tracker"])

    def end(self, units: list[Unit]) -> None:
        """Divide gradients by the scale, and note which are not finite; after a backward pass."""
        if not self.on:
            return
        for unit in units:
            _multiply(_gradients(unit.parameters()), 1 / self.value)
            for optimizer in unit.optimizers:
                known = self._overflows.get(id(optimizer))
                found = _overflows(
                    _gradients(p for g in optimizer.param_groups for p in g["params"])
                )
                self._overflows[id(optimizer)] = found if known is None else found | known

    def takes_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> bool:
        """Return whether to take the cell's ``step``: not after an overflow on any rank.

        Raises:
            StrategyError: it has a closure, which would run the backward pass only now.
        """
        if self.on and _has_closure(step):
            what = "--precision fp16 cannot step with a closure, as the step may have to be skipped"
            raise StrategyError(format_message(what, instead="%%mgpu --precision bf16"))
        found = self._overflows.pop(id(optimizer), None)
        if found is None:
            return True
        anywhere = found.float()
        dist.all_reduce(anywhere, dist.ReduceOp.MAX)
        is_finite = anywhere.item() == 0
        self._stepped = is_finite and self._stepped is not False
        return is_finite


def _has_closure(step: Callable[[], Any]) -> bool:
    """Return whether a step, a partial of an optimizer's own, has a function as argument."""
    if not isinstance(step, functools.partial):
        return False
    return any(callable(value) for value in (*step.args[1:], *step.keywords.values()))


def _gradients(parameters: Any) -> list[Tensor]:
    return [local(p.grad) for p in parameters if p.grad is not None]


def _multiply(grads: list[Tensor], factor: float) -> None:
    dense = [g for g in grads if not g.is_sparse]
    if dense:
        torch._foreach_mul_(dense, factor)
    for sparse in (g for g in grads if g.is_sparse):
        sparse.mul_(factor)


def _overflows(grads: list[Tensor]) -> Tensor:
    if not grads:
        return torch.zeros((), dtype=torch.bool)
    values = [g.coalesce().values() if g.is_sparse else g for g in grads]
    largest = torch._foreach_norm([v for v in values if v.numel()], float("inf"))
    return ~torch.stack([norm.float() for norm in largest]).isfinite().all()


def refuse_scalers() -> None:
    """Refuse a ``GradScaler`` of the cell, for the rest of this process."""
    scale = torch.amp.GradScaler.scale

    @functools.wraps(scale)
    def refused(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        if scaler.is_enabled():
            what = "--precision fp16 scales losses by itself, and this cell has a GradScaler"
            allowed = "Keep one of them"
            instead = "%%mgpu without --precision, or a cell without GradScaler"
            raise StrategyError(format_message(what, allowed, instead))
        return scale(scaler, outputs)

    PatchStack().replace("torch.amp.GradScaler.scale", refused)
