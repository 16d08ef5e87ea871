"""The strategies ``deepspeed_stage_1`` to ``deepspeed_stage_3_offload``.

DeepSpeed's engine implements ZeRO (Rajbhandari et al., SC 2020, arXiv 1910.02054): it averages and
partitions gradients, updates the partitions and gathers parameters.  A backward pass of the cell
runs as one of the engine.  A step of the cell's optimizer runs as one of the engine, which calls
the cell's optimizer for this rank's partitions.
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
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.replication import broadcast_unless_equal
from nbmgpu.strategies.rnn_weights import keep_rnn_weights_in_place

from .call_order import BACKWARD, END_OF_CELL
from .compatibility import check_unit
from .config import read_config
from .engine_wrapper import EngineWrapper
from .initialization import check_fp16_support, import_deepspeed
from .parameter_proxies import ParameterProxy, PartitionedParameterProxy
from .partition_layout import partition_numel

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

OVERFLOW = (
    "Gradients were infinite or not a number: DeepSpeed skips such a step, where one device would "
    "have taken it and filled the weights with NaN."
)
FROZEN_IN_PASS = (
    "Parameters were frozen or unfrozen between the forward and the backward pass, or right before",
    "Stage 3 of DeepSpeed must know before the forward pass",
    "optimizer.zero_grad() between the change and the forward pass, or --strategy fsdp",
)
FROZEN_MODEL = (
    "A model that trains was frozen as a whole, such as a GAN's critic while the generator trains",
    "An engine of DeepSpeed would not train it again",
    "--strategy zero1 or fsdp, which do, or the model left unfrozen: its optimizer does not step",
)
NOT_CALLED = (
    "Inputs are cast to half precision where a model is called: model(x)",
    "model.forward(x), or a part of the model alone, gets its inputs as they are",
    "--precision fp32, or autocast in the cell",
)
LOST = (
    "The cell failed, and the other ranks' partitions could not be gathered: the optimizer has "
    "lost its states, and under stage 3 the model has the weights from before the cell."
)


class DeepSpeed(Strategy):
    """Base class of the strategies, one for each ZeRO stage."""

    weighs_losses: ClassVar[bool] = True
    shards_state: ClassVar[bool] = True
    stage: ClassVar[int]
    offload: ClassVar[bool] = False

    def __init__(self, context: RankContext) -> None:
        """Start without engines."""
        super().__init__(context)
        keep_rnn_weights_in_place()
        import_deepspeed(self.device)  # not in the cell: it runs compilers, as --exact auto notices
        self.wrappers: list[EngineWrapper] = []
        self._patches = PatchStack()
        self._scale = 1.0

    def prepare(self, units: list[Unit]) -> None:
        """Create an engine for every unit that trains, and again for one that has changed."""
        wanted = [unit for unit in units if unit.trains]
        kept = []
        for wrapper in self.wrappers:
            same = [u for u in wanted if wrapper.trained.matches(u)]
            if same and not wrapper.trained.changed():
                kept.append(wrapper)
                wanted.remove(same[0])
            else:
                wrapper.finish()
        self.wrappers = kept
        if wanted and not self._patches:
            self._patch_zero_grad()
        for unit in wanted:
            self._create_wrapper(unit)

    def _recreate_stale(self) -> None:
        """Recreate the engines whose parameters the cell has frozen or unfrozen."""
        changed = [wrapper for wrapper in self.wrappers if wrapper.trained.changed()]
        if not all(wrapper.trained.unit.trains for wrapper in changed):
            raise StrategyError(format_message(*FROZEN_MODEL))
        if changed:
            self.prepare([wrapper.trained.unit for wrapper in self.wrappers])

    def _create_wrapper(self, unit: Unit) -> None:
        check_unit(unit, self.stage)
        if self.options.precision == "fp16":
            check_fp16_support(self.device)
        broadcast_unless_equal([*unit.parameters(), *unit.buffers()])
        elements = sum(p.numel() for p in unit.parameters())
        config = read_config(self.options, self.stage, self.offload, elements, self.notice)
        self.wrappers.append(EngineWrapper(unit, self.stage, config))

    def loss_scale(self) -> float:
        """Return the largest loss scale of the engines, which is not 1 under fp16."""
        scales = {float(wrapper.engine.optimizer.loss_scale) for wrapper in self.wrappers}
        return max(scales, default=1.0)

    def check_backward(self) -> None:
        """Check that no rank is in a forward pass, whose all-gathers would wait for this rank."""
        for wrapper in self.wrappers:
            wrapper.check_call(BACKWARD)

    def begin_backward(self, backward: Backward) -> None:
        """Prepare the engines for gradients, also of parameters that were frozen before."""
        if any(w.trained.changed() and w.awaits_backward for w in self.wrappers):
            raise StrategyError(format_message(*FROZEN_IN_PASS))
        self._recreate_stale()
        self._scale = self.loss_scale()
        for wrapper in self.wrappers:
            wrapper.backward_pass.begin()

    def end_backward(self, backward: Backward) -> None:
        """Let the engines average the gradients."""
        for wrapper in self.wrappers:
            wrapper.backward_pass.end(self._scale)
            wrapper.statistics.average(1.0 / self.world_size)

    def _wrapper_of(self, optimizer: Optimizer) -> EngineWrapper | None:
        return next((w for w in self.wrappers if w.trained.has(optimizer)), None)

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step through the engine, which calls ``plain`` for this rank's partitions."""
        wrapper = self._wrapper_of(optimizer)
        if wrapper is None:
            return plain()
        result = wrapper.optimizer_step.step(optimizer, _with_closure_called(plain))
        if wrapper.engine.optimizer.overflow and self.options.precision != "fp16":
            self.notice("deepspeed-overflow", OVERFLOW)
        return result

    def zero_grad(self, optimizer: Optimizer, plain: Callable[[], None]) -> None:
        """Clear gradients without gathering them."""
        with self._local_gradients():
            plain()
        if not any(wrapper.awaits_backward for wrapper in self.wrappers):
            self._recreate_stale()

    def clip_grad_norm(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        plain: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """Clip by the norm of all gradients, partitioned ones included."""
        proxies = [p for p in parameters if isinstance(p, ParameterProxy)]
        if not proxies:
            return plain(parameters)
        norm_type = float(norm_type)
        wrappers = [w for w in self.wrappers if any(p.engine_wrapper is w for p in proxies)]
        totals = [
            w.gradients.norm_power([p for p in proxies if p.engine_wrapper is w], norm_type)
            for w in wrappers
        ]
        others = [
            p.grad for p in parameters if not isinstance(p, ParameterProxy) and p.grad is not None
        ]
        norms = [torch.linalg.vector_norm(g, norm_type).to(totals[0].device) for g in others]
        if norm_type == float("inf"):
            norm = torch.stack([*totals, *norms]).max()
        else:
            norm = (
                torch.stack([*totals, *(n.pow(norm_type) for n in norms)]).sum().pow(1 / norm_type)
            )
        if not torch.isfinite(norm):
            return plain(parameters)  # it raises where error_if_nonfinite=True
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for wrapper in wrappers:
            wrapper.gradients.multiply([p for p in proxies if p.engine_wrapper is wrapper], factor)
        for gradient in others:
            gradient.mul_(factor.to(gradient.device))
        return norm

    @contextlib.contextmanager
    def _local_gradients(self) -> Iterator[None]:
        """Let ``.grad`` be this rank's slice, for elementwise operations."""
        for wrapper in self.wrappers:
            wrapper.gradients.exposes_local = True
        try:
            yield
        finally:
            for wrapper in self.wrappers:
                wrapper.gradients.exposes_local = False

    def _patch_zero_grad(self) -> None:
        """Let ``module.zero_grad()`` clear gradients without gathering them."""
        plain = nn.Module.zero_grad

        @functools.wraps(plain)
        def zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
            with self._local_gradients():
                plain(module, set_to_none)

        self._patches.replace("torch.nn.Module.zero_grad", zero_grad)

    def local_numel(self, parameter: Tensor) -> int:
        """Return the size of this rank's partition under stage 3, else of the whole parameter."""
        if isinstance(parameter, PartitionedParameterProxy):
            return partition_numel(parameter)
        return parameter.numel()

    def count_hooks(self, parameter: Tensor) -> int:
        """Return 2: the engine's hook and that of ``BackwardPass``."""
        return 2

    def join_save(self, value: Any) -> None:
        """Gather the optimizer states that rank 0 pickles; collective with rank 0."""
        CollectivePickle().dump(value)

    def explain(self, error: BaseException) -> str:
        """Explain an error about dtypes that half precision under DeepSpeed causes."""
        text = str(error)
        if self.options.precision in ("bf16", "fp16") and "same dtype" in text:
            return format_message(*NOT_CALLED)
        return ""

    def finish(self) -> None:
        """Gather weights, gradients and states into the user's objects; collective."""
        for wrapper in self.wrappers:
            wrapper.check_call(END_OF_CELL)
        for wrapper in self.wrappers:
            wrapper.finish()
        self.wrappers = []

    def release(self) -> None:
        """Restore the user's objects without collectives."""
        for wrapper in self.wrappers:
            wrapper.abandon()
            self.notice("deepspeed-states-lost", LOST)
        self.wrappers = []
        self._patches.remove()


def _with_closure_called(plain: Callable[[], Any]) -> Callable[[], Any]:
    """Call the closure of ``plain``, an optimizer step, and return the step with its result.

    The engine must have the gradients before the step.  A second call of the closure is refused.
    """
    if not isinstance(plain, functools.partial) or not has_closure(plain.args[1:], plain.keywords):
        return plain
    closure = next(v for v in (*plain.args[1:], *plain.keywords.values()) if callable(v))
    with torch.enable_grad():
        loss = closure()
    calls = itertools.count()

    def return_loss() -> Any:
        if next(calls):
            what = "The optimizer evaluates its closure several times in a step"
            allowed = "DeepSpeed averages the gradients once, before the step"
            raise StrategyError(format_message(what, allowed, "%%mgpu --strategy ddp"))
        return loss

    return functools.partial(plain.func, plain.args[0], return_loss)


def _profile(name: str) -> Profile:
    return profiles.BUILT_IN[name]


class Stage1(DeepSpeed):
    """ZeRO stage 1: optimizer states are partitioned."""

    profile = _profile("deepspeed_stage_1")
    stage = 1


class Stage2(DeepSpeed):
    """ZeRO stage 2: gradients are partitioned too."""

    profile = _profile("deepspeed_stage_2")
    stage = 2


class Stage3(DeepSpeed):
    """ZeRO stage 3: parameters are partitioned too."""

    profile = _profile("deepspeed_stage_3")
    stage = 3
    shards_parameters = True


class Stage2Offload(DeepSpeed):
    """ZeRO stage 2 with optimizer states and steps on the CPU."""

    profile = _profile("deepspeed_stage_2_offload")
    stage = 2
    offload = True


class Stage3Offload(DeepSpeed):
    """ZeRO stage 3 with parameters, optimizer states and steps on the CPU."""

    profile = _profile("deepspeed_stage_3_offload")
    stage = 3
    shards_parameters = True
    offload = True
