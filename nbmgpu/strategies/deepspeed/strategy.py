"""``deepspeed_stage_1`` to ``deepspeed_stage_3_offload``: DeepSpeed's own engine, in place.

ZeRO (Rajbhandari et al., SC 2020, 1910.02054) as DeepSpeed does it: its engine averages
and partitions the gradients, updates the partitions and gathers parameters.  It is
driven from beneath the cell: a backward pass of the cell is one of the engine, an
optimizer's step is one of the engine, which then calls the cell's optimizer for its part.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.patches import PatchStack
from nbmgpu.strategies import profiles
from nbmgpu.strategies.base import Backward, RankContext, Strategy, Unit
from nbmgpu.strategies.collective_pickle import CollectivePickle
from nbmgpu.strategies.per_parameter import has_closure
from nbmgpu.strategies.replication import broadcast_unless_equal

from .compatibility import check_unit
from .config import read_config
from .engine_wrapper import Home, signature
from .initialization import check_fp16_support, import_deepspeed
from .parameter_gathering import BACKWARD, END_OF_CELL
from .parameter_proxies import Watched

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

OVERFLOW = (
    "Gradients were infinite or not a number: DeepSpeed leaves out such a step, where one device "
    "would have taken it and spoiled the weights."
)
THAWED = (
    "Parameters were frozen or unfrozen between the forward and the backward pass, or right before",
    "Stage 3 of DeepSpeed must know before the forward pass",
    "optimizer.zero_grad() between the change and the forward pass, or --strategy fsdp",
)
FROZEN = (
    "A model that is trained was frozen as a whole, as a critic is while its opponent learns",
    "An engine of DeepSpeed would not train it again",
    "--strategy zero1 or fsdp, which do, or the model left as it is: its optimizer does not step",
)
NOT_CALLED = (
    "Half precision begins where a model is called: model(x)",
    "model.forward(x), or a part of the model alone, gets what it is given",
    "--precision fp32, or autocast in the cell",
)
LOST = (
    "The cell failed, and other ranks could not be asked for what they held: the optimizer has "
    "lost its states, and under stage 3 the model has the weights of before the cell."
)


class DeepSpeed(Strategy):
    """DeepSpeed's engine at one of its ZeRO stages."""

    weighs_losses: ClassVar[bool] = True
    shards_state: ClassVar[bool] = True
    stage: ClassVar[int]
    offload: ClassVar[bool] = False

    def __init__(self, context: RankContext) -> None:
        """Start without any engine."""
        super().__init__(context)
        self.homes: list[Home] = []
        self._patches = PatchStack()
        self._scale = 1.0

    def prepare(self, units: list[Unit]) -> None:
        """Give every unit that can train an engine; what has changed gets a new one."""
        wanted = [unit for unit in units if unit.trains]
        kept = []
        for home in self.homes:
            same = [u for u in wanted if signature(u) == home.signature]
            if same and not self._thawed(home):
                kept.append(home)
                wanted.remove(same[0])
            else:
                home.finish()
        self.homes = kept
        if wanted and not self._patches:
            import_deepspeed(self.device)
            self._watch_modules()
        for unit in wanted:
            self._house(unit)

    def _thawed(self, home: Home) -> bool:
        """Tell whether other parameters are frozen than when the engine was made."""
        return home.trainable.changed()

    def _renew(self) -> None:
        """Make new engines where the cell has frozen or unfrozen parameters."""
        changed = [home for home in self.homes if self._thawed(home)]
        if not all(home.unit.trains for home in changed):
            raise StrategyError(format_message(*FROZEN))
        if changed:
            self.prepare([home.unit for home in self.homes])

    def _house(self, unit: Unit) -> None:
        check_unit(unit, self.stage)
        if self.options.precision == "fp16":
            check_fp16_support(self.device)
        broadcast_unless_equal([*unit.parameters(), *unit.buffers()])
        elements = sum(p.numel() for p in unit.parameters())
        config = read_config(self.options, self.stage, self.offload, elements, self.notice)
        self.homes.append(Home(unit, self.stage, config))

    def loss_scale(self) -> float:
        """Return what losses are multiplied by: small gradients vanish in float16."""
        scales = {float(home.engine.optimizer.loss_scale) for home in self.homes}
        return max(scales, default=1.0)

    def check_backward(self) -> None:
        """Check that no rank is in a forward pass, whose all-gathers would wait for this rank."""
        for home in self.homes:
            home.check_call(BACKWARD)

    def begin_backward(self, backward: Backward) -> None:
        """Let the engines expect gradients, also of parameters that were frozen before."""
        if any(self._thawed(home) and home.used for home in self.homes):
            raise StrategyError(format_message(*THAWED))
        self._renew()
        self._scale = self.loss_scale()
        for home in self.homes:
            home.begin_backward()

    def end_backward(self, backward: Backward) -> None:
        """Let the engines average what arrived."""
        for home in self.homes:
            home.end_backward(self._scale)
            home.statistics.average(1.0 / self.world_size)

    def _home_of(self, optimizer: Optimizer) -> Home | None:
        return next((h for h in self.homes if any(o is optimizer for o in h.optimizers)), None)

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step through the engine, which calls ``plain`` for this rank's slices."""
        home = self._home_of(optimizer)
        if home is None:
            return plain()
        result = home.step(optimizer, evaluated(plain))
        if home.engine.optimizer.overflow and self.options.precision != "fp16":
            self.notice("deepspeed-overflow", OVERFLOW)
        return result

    def zero_grad(self, optimizer: Optimizer, plain: Callable[[], None]) -> None:
        """Remove gradients, without collecting them first."""
        with self._showing_parts():
            plain()
        if not any(home.used for home in self.homes):
            self._renew()

    def clip_grad_norm(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        plain: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """Clip by the norm of all gradients, those that lie on all ranks included."""
        held = [p for p in parameters if isinstance(p, Watched)]
        if not held:
            return plain(parameters)
        kind = float(norm_type)
        homes = [h for h in self.homes if any(p.home is h for p in held)]
        totals = [h.gradients.powers([p for p in held if p.home is h], kind) for h in homes]
        others = [p.grad for p in parameters if not isinstance(p, Watched) and p.grad is not None]
        norms = [torch.linalg.vector_norm(g, kind).to(totals[0].device) for g in others]
        if kind == float("inf"):
            norm = torch.stack([*totals, *norms]).max()
        else:
            norm = torch.stack([*totals, *(n.pow(kind) for n in norms)]).sum().pow(1 / kind)
        if not torch.isfinite(norm):
            return plain(parameters)  # it knows whether that is an error
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for home in homes:
            home.gradients.multiply([p for p in held if p.home is home], factor)
        for gradient in others:
            gradient.mul_(factor.to(gradient.device))
        return norm

    @contextlib.contextmanager
    def _showing_parts(self) -> Iterator[None]:
        """Let ``.grad`` be this rank's part, for what treats every element alike."""
        for home in self.homes:
            home.shows_parts = True
        try:
            yield
        finally:
            for home in self.homes:
                home.shows_parts = False

    def _watch_modules(self) -> None:
        """Let ``module.zero_grad()`` remove gradients without collecting them first."""
        plain = nn.Module.zero_grad

        @functools.wraps(plain)
        def zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
            with self._showing_parts():
                plain(module, set_to_none)

        self._patches.replace("torch.nn.Module.zero_grad", zero_grad)

    def count_hooks(self, parameter: Tensor) -> int:
        """Return 2: the engine's and ours."""
        return 2

    def join_save(self, value: Any) -> None:
        """Collect with rank 0 the states of optimizers that it pickles."""
        CollectivePickle().dump(value)

    def explain(self, error: BaseException) -> str:
        """Return what an error means that DeepSpeed's half precision brings about."""
        text = str(error)
        if self.options.precision in ("bf16", "fp16") and "same dtype" in text:
            return format_message(*NOT_CALLED)
        return ""

    def finish(self) -> None:
        """Bring everything together in the user's objects."""
        for home in self.homes:
            home.check_call(END_OF_CELL)
        for home in self.homes:
            home.finish()
        self.homes = []

    def release(self) -> None:
        """Leave the user's objects, with what this rank has of them."""
        for home in self.homes:
            home.abandon()
            self.notice("deepspeed-lost", LOST)
        self.homes = []
        self._patches.remove()


def evaluated(plain: Callable[[], Any]) -> Callable[[], Any]:
    """Return ``plain``, a step of the cell, with its closure called already, if it has one.

    The engine must have the gradients before the step.  Optimizers that look at several
    points, such as LBFGS, are refused by their trial; here by a second call.
    """
    if not isinstance(plain, functools.partial) or not has_closure(plain.args[1:], plain.keywords):
        return plain
    closure = next(v for v in (*plain.args[1:], *plain.keywords.values()) if callable(v))
    with torch.enable_grad():
        loss = closure()
    calls = itertools.count()

    def again() -> Any:
        if next(calls):
            what = "The optimizer evaluates its closure several times in a step"
            allowed = "DeepSpeed's engine steps on gradients that it has averaged before"
            raise StrategyError(format_message(what, allowed, "%%mgpu --strategy ddp"))
        return loss

    return functools.partial(plain.func, plain.args[0], again)


def _profile(name: str) -> profiles.Profile:
    return profiles.BUILT_IN[name]


class Stage1(DeepSpeed):
    """Optimizer states are partitioned."""

    profile = _profile("deepspeed_stage_1")
    stage = 1


class Stage2(DeepSpeed):
    """Gradients, too."""

    profile = _profile("deepspeed_stage_2")
    stage = 2


class Stage3(DeepSpeed):
    """Parameters, too."""

    profile = _profile("deepspeed_stage_3")
    stage = 3


class Stage2Offload(DeepSpeed):
    """As stage 2, with states and steps on the host."""

    profile = _profile("deepspeed_stage_2_offload")
    stage = 2
    offload = True


class Stage3Offload(DeepSpeed):
    """As stage 3, with states and steps on the host."""

    profile = _profile("deepspeed_stage_3_offload")
    stage = 3
    offload = True
