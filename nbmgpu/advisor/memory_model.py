"""What one rank holds at most, by strategy and by kind.

Rajbhandari et al., ZeRO (1910.02054), count for mixed precision with Adam, per parameter: 16
bytes under data parallelism (2 the parameter, 2 its gradient, 12 the optimizer with a float32
copy), 4 + 12/N when states are sharded (stage 1), 2 + 14/N with gradients as well (stage 2),
16/N with all (stage 3); see ``zero``.

The strategies here are counted as they are.  Parameters stay in float32 under ``--precision``
(autocast), so Adam makes 4 + 4 + 8 = 16 bytes again; ``ddp`` and ``zero1`` have 4 more for the
buckets in which gradients travel; ``zero1`` deals out whole parameters; ``zero2`` and
``fsdp`` are FSDP2, which gathers units and lets go of them.  tests/advisor compares all of this
with what ranks have measured.

DeepSpeed documents 4 + 16/N bytes for its stage 2, while its estimator
(``estimate_zero2_model_states_mem_needs``) computes 2 + 18/N: for the 2851 million parameters
and 8 GPUs of its documentation 11.3 GiB, where that shows 15.93.  Both say 18/N and 4 for each
number of the largest layer for stage 3.  Neither knows of training in float32, nor of the
bucket in which gradients are reduced: here as large as the model, up to 500 million numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .activations import MORE
from .interval import KIB, Span, at_least

if TYPE_CHECKING:
    from nbmgpu.strategies.strategy_options import Precision

    from .activations import Activations
    from .fsdp_units import Units
    from .model_size import Counted

Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "extra"]

KINDS: dict[Kind, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations, and what a step computes on its way",
    "buffers": "buffers of the model, gradients in transit and parameters gathered for a while",
    "extra": "the process itself, and what the allocator loses",
}
"""What memory is spent on, in the order in which it is shown."""

Held = Mapping[Kind, Span]

GIB = KIB**3
OF_CPU_PROCESS = Span(0.015 * GIB, 0.3 * GIB)
"""A CPU rank's own memory, libraries that ranks share not counted."""

OF_GPU_PROCESS = Span(0.4 * GIB, 1.5 * GIB)
"""A CUDA context, NCCL's buffers and libraries' workspaces."""

LOST = 0.06
"""What an allocator for GPUs loses between tensors, at most."""

DEEPSPEED_BUCKET = 500_000_000
"""Numbers in the bucket of DeepSpeed's gradients, at most."""


@dataclass(frozen=True)
class Case:
    """All that the memory of a rank depends on."""

    counted: Counted
    units: Units
    activations: Activations | None
    ranks: int
    on_gpu: bool
    accumulate: int = 1
    precision: Precision | None = None

    @property
    def half(self) -> float:
        """How much of a gathered parameter there is: FSDP2 gathers in ``--precision bf16``."""
        return 0.5 if self.precision == "bf16" else 1.0

    def on_the_way(self, gradients: float, share: float = 1.0) -> Span:
        """Return activations and what an optimizer's step computes, beside ``gradients``.

        ``share`` is the rank's share of the parameters that the optimizer steps on.
        """
        step = self._stepping(share)
        acts = self.activations
        if acts is None:
            return step
        # A cell may clear gradients before its forward pass, or after it.
        passing = Span(acts.together.low - gradients, acts.alone.high)
        if self.accumulate > 1:
            passing = Span(acts.alone.low - self.counted.largest, acts.alone.high)
        passing = Span(min(passing.low, passing.high), passing.high)
        return at_least(passing, step, Span(0.0, 0.0))

    def _stepping(self, share: float) -> Span:
        # On GPUs torch steps on all parameters at once, and has room for each; else one by one.
        at_once = self.counted.gradients * share if self.on_gpu else 3.0 * self.counted.largest
        return Span(0.0, at_once * MORE)

    def beside_shards(self, share: float) -> Span:
        """Return the same where gradients are shards; the low end is when the pass begins."""
        acts = self.activations
        step = self._stepping(share)
        if acts is None:
            return step
        # FSDP2 and DeepSpeed compute all of a pass in half precision; autocast not quite all.
        low = acts.bare_kept.low * (0.85 if self.half < 1 else 1.0)
        return Span(low, max(step.high, acts.bare_alone.high))


def zero(stage: int, ranks: int, parameters: float) -> float:
    """Return the bytes of model states that the ZeRO paper gives for mixed precision with Adam."""
    return parameters * {
        0: 16.0, 1: 4 + 12 / ranks, 2: 2 + 14 / ranks, 3: 16 / ranks,
    }[stage]  # fmt: skip


def of_ddp(case: Case) -> dict[Kind, Span]:
    """Everything is whole; gradients travel in buckets that stay."""
    counted = case.counted
    gradients = counted.gradients
    return {
        "parameters": Span.exactly(counted.parameters),
        "gradients": Span.exactly(gradients),
        "optimizer": Span.exactly(counted.all_states),
        "activations": case.on_the_way(gradients),
        "buffers": Span.exactly(counted.buffers + gradients),
    }


def of_zero1(case: Case) -> dict[Kind, Span]:
    """As ``ddp``; each rank has the states of the whole parameters that are dealt to it."""
    counted = case.counted
    share = counted.largest_share(case.ranks)
    held = of_ddp(case)
    held["optimizer"] = Span(min(share, counted.all_states / case.ranks), share)
    return held


def of_fsdp(case: Case, keeps: bool = False, offload: bool = False) -> dict[Kind, Span]:
    """Rows of everything; units are gathered, and freed after the forward pass unless ``keeps``.

    What no unit has, the root's own, stays gathered until the backward pass is over, and so do
    its gradients.  With ``offload`` the shards lie in the memory of the host.
    """
    counted, units, half, ranks = case.counted, case.units, case.half, case.ranks
    whole = max(1, counted.parameters)
    sharded, kept = units.sharded / whole, units.kept / whole
    share = kept + (0 if offload else sharded / ranks)
    root, unit = float(units.root), float(units.largest)
    gradients = counted.gradients * share
    gathered = (units.sharded if keeps else root + unit) * half
    # Beside the unit that computes: the next one gathered, gradients of three on their way.
    most = gathered + (0 if keeps else unit * half) + root * (half + 1) + unit * (half + 3)
    way = case.beside_shards(share)
    # When the backward pass begins, or when it ends: all gradients, and the root not yet freed.
    least = max(way.low + gathered, gradients + root * half) - gradients
    transit = min(gathered, least)
    return {
        "parameters": Span.exactly(counted.parameters * share),
        "gradients": Span.exactly(gradients),
        "optimizer": Span.exactly(counted.all_states * share),
        "activations": Span(least - transit, way.high),
        "buffers": Span(transit, most) + Span.exactly(counted.buffers),
    }


def of_zero2(case: Case) -> dict[Kind, Span]:
    """As ``fsdp``, and all parameters stay gathered from the forward to the backward pass."""
    return of_fsdp(case, keeps=True)


def of_offloaded_fsdp(case: Case) -> dict[Kind, Span]:
    """As ``fsdp``, with shards in the memory of the host."""
    return of_fsdp(case, offload=True)


def of_deepspeed(case: Case, stage: int, offload: bool = False) -> dict[Kind, Span]:
    """DeepSpeed's engine: what is sharded, and float32 copies of it as one flat piece."""
    counted, ranks = case.counted, case.ranks
    gradients = counted.gradients
    half = 0.5 if case.precision in ("bf16", "fp16") else 1.0
    bucket = min(gradients, 4 * DEEPSPEED_BUCKET) * half
    part = gradients / ranks
    held: dict[Kind, Span] = {
        "parameters": Span.exactly(counted.parameters * half),
        "gradients": Span(part * half, (gradients if stage == 1 else part) * half + part),
        "optimizer": Span(counted.all_states / ranks, counted.all_states / ranks + 2 * part),
        "activations": case.beside_shards(1 / ranks),
        "buffers": Span(0.0, 2.0 * bucket) + Span.exactly(counted.buffers),
    }
    if stage == 3:
        held["parameters"] = Span(1.0, 2.0) * (counted.parameters * half / ranks)
        gathered = (case.units.root + case.units.largest) * half
        held["buffers"] += Span(gathered, 3.0 * gathered)
    if offload:
        host: tuple[Kind, ...] = ("optimizer", "gradients")
        for kind in (*host, "parameters") if stage == 3 else host:
            held[kind] = Span(0.0, held[kind].high if kind == "gradients" else 0.0)
    return held


def of_dp(case: Case) -> dict[Kind, Span]:
    """One process: the first GPU has everything, and what the others return."""
    held = of_ddp(case)
    held["buffers"] = Span.exactly(case.counted.buffers)
    if not case.on_gpu:
        held["activations"] *= case.ranks  # one process, the whole batch
    return held


OF: dict[str, Callable[[Case], dict[Kind, Span]]] = {
    "ddp": of_ddp,
    "zero1": of_zero1,
    "zero2": of_zero2,
    "fsdp": of_fsdp,
    "fsdp --cpu-offload": of_offloaded_fsdp,
    "deepspeed_stage_1": lambda case: of_deepspeed(case, 1),
    "deepspeed_stage_2": lambda case: of_deepspeed(case, 2),
    "deepspeed_stage_3": lambda case: of_deepspeed(case, 3),
    "deepspeed_stage_2_offload": lambda case: of_deepspeed(case, 2, True),
    "deepspeed_stage_3_offload": lambda case: of_deepspeed(case, 3, True),
    "dp": of_dp,
}
"""How each strategy of this package is counted; ``none`` holds what its cell makes it hold."""

SOURCES = {
    "ddp": "measured here: 16 bytes a parameter, 4 for buckets",
    "zero1": "ZeRO 1910.02054, stage 1; measured here",
    "zero2": "ZeRO 1910.02054, stage 2, by FSDP2; measured here",
    "fsdp": "ZeRO 1910.02054, stage 3, by FSDP2; measured here",
    "fsdp --cpu-offload": "as fsdp; FSDP2's CPUOffloadPolicy",
    "dp": "nn.DataParallel",
}
DEEPSPEED = "ZeRO 1910.02054, and DeepSpeed's own estimators; a wide range"


def held_by(name: str, case: Case) -> Held | None:
    """Return what a rank holds under the strategy ``name``; None where nobody can know."""
    count = OF.get(name)
    if count is None:
        return None
    held = count(case)
    held["extra"] = OF_GPU_PROCESS if case.on_gpu else OF_CPU_PROCESS
    if case.on_gpu:
        held["extra"] += Span(0.0, LOST * total(held).high)
    return {kind: held[kind] for kind in KINDS}


def total(held: Held) -> Span:
    """Return the sum of all kinds."""
    return sum(held.values(), Span(0.0, 0.0))


def source_of(name: str) -> str:
    """Return where the numbers of a strategy come from."""
    return SOURCES.get(name, DEEPSPEED)
