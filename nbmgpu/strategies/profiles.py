"""What is known of each strategy without importing torch: names, options, needs and costs.

The table of strategies in docs/strategies.md is made from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from .strategy_options import Tuning

COMPILER = ("torch._inductor.compile_fx",)
"""What ``--compile`` imports, seconds of it."""

GENERAL = frozenset({"accumulate", "precision", "compile", "clip", "checkpointing"})
"""Options that every strategy can have which trains a plain module."""

OF_DDP = frozenset({"find_unused", "static_graph", "bucket_views", "compress"})
OF_FSDP = frozenset({"fsdp_units", "cpu_offload"})

HOLDERS = {
    "cpu_offload": "fsdp",
    "fsdp_units": "fsdp",
    "deepspeed_config": "deepspeed_stage_2",
}
"""The strategy to take for what others have not."""

REASONS = {
    "find_unused": "it is an option of ddp's reducer",
    "static_graph": "it is an option of ddp's reducer",
    "bucket_views": "it is an option of ddp's reducer",
    "compress": "it is an option of ddp's reducer",
    "fsdp_units": "only fsdp and zero2 shard modules by units",
    "cpu_offload": "the model is not sharded, so there is nothing to bring in piece by piece",
    "deepspeed_config": "it configures DeepSpeed's engine",
    "sync_batchnorm": "batch statistics are not computed by ranks there",
}
"""Why an option is refused, where the strategy itself has no better reason."""


@dataclass(frozen=True)
class Profile:
    """One strategy as people choose it.

    Attributes:
        name: what ``--strategy`` takes.
        summary: one line for people.
        aliases: other names for it, from Lightning, accelerate, DeepSpeed and torch.
        takes: fields of ``Tuning`` that it can have.
        own: those of them that it applies itself, instead of the rank.
        refuses: for fields of ``Tuning`` that it cannot have, why; ``precision=fp16`` is
            about a single value.
        instead: for such a field, the strategy to take for it.
        shards_data: whether each rank takes a share of every global batch.
        in_one_process: whether one rank holds all devices.
        packages: what must be installed beside torch.
        modules: what it imports that takes long: worth having before ranks begin.
        check: refuses what no table can tell, in the kernel and before anything starts; it
            must not import torch.
        least_torch: the oldest version of torch that it works with, if that is not any.
        needs, saves, costs: columns of the documentation.
    """

    name: str
    summary: str
    aliases: tuple[str, ...] = ()
    takes: frozenset[str] = GENERAL
    own: frozenset[str] = frozenset()
    refuses: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    shards_data: bool = True
    in_one_process: bool = False
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    check: Callable[[Tuning], None] | None = None
    least_torch: tuple[int, int] = (0, 0)
    needs: str = ""
    saves: str = ""
    costs: str = ""

    def reason(self, option: str, value: object = None) -> str:
        """Return why ``option``, a field of ``Tuning``, cannot be had; empty if it can."""
        if option in self.takes:
            return self.refuses.get(f"{option}={value}", "")
        return self.refuses.get(option) or REASONS.get(option, "this strategy has no such thing")


DDP = Profile(
    name="ddp",
    summary="every rank holds the model; gradients are averaged as they arrive",
    aliases=(
        "distributed_data_parallel", "ddp_notebook", "ddp_spawn", "ddp_fork", "multi_gpu",
        "multi_cpu", "ddp_find_unused_parameters_true",
    ),
    takes=GENERAL | OF_DDP | {"sync_batchnorm"},
    own=OF_DDP,
    instead=HOLDERS,
    needs="a model that fits one device with gradients and optimizer states",
    saves="nothing: parameters, gradients and states are whole on every rank",
    costs="one all-reduce of the gradients per step, most of it behind the backward pass",
)  # fmt: skip

NONE = Profile(
    name="none",
    summary="ranks with a process group, nothing touched: you distribute",
    aliases=("null", "manual"),
    takes=frozenset(),
    refuses=dict.fromkeys(
        [*GENERAL, "sync_batchnorm"], "under none nothing is touched; write it in the cell"
    ),
    shards_data=False,
    needs="a cell that distributes by itself",
    saves="what the cell saves",
    costs="what the cell costs",
)

DP = Profile(
    name="dp",
    summary="nn.DataParallel: one process copies the model to every GPU at each step",
    aliases=("data_parallel", "dataparallel"),
    takes=GENERAL,
    refuses={"sync_batchnorm": "one process computes the statistics of each GPU's share alone"},
    instead={"sync_batchnorm": "ddp"},
    shards_data=False,
    in_one_process=True,
    needs="several GPUs in one machine; for teaching",
    saves="nothing; the first GPU holds more than the others",
    costs="a copy of the model to every GPU at each step, in one process: slower than ddp",
)

ZERO1 = Profile(
    name="zero1",
    summary="as ddp, and each rank keeps the optimizer states of its share of the parameters",
    aliases=("zero_1", "zero_stage_1", "ddp_sharded", "sharded_ddp", "zero_redundancy"),
    takes=GENERAL | OF_DDP | {"sync_batchnorm"},
    own=OF_DDP,
    instead=HOLDERS,
    modules=("torch.distributed.optim",),
    needs="an optimizer that updates each parameter by itself (not LBFGS)",
    saves="optimizer states: 1/N of them per rank",
    costs="after each step, a broadcast of every rank's updated parameters",
)

FSDP = Profile(
    name="fsdp",
    summary="parameters, gradients and optimizer states are sharded (FSDP2, ZeRO stage 3)",
    aliases=(
        "fsdp2", "zero3", "zero_3", "zero_stage_3", "full_shard", "fully_shard", "fsdp_full_shard",
        "fully_sharded_data_parallel",
    ),
    takes=GENERAL | OF_FSDP | {"sync_batchnorm"},
    own=OF_FSDP | {"precision"},
    refuses={"precision=fp16": "its losses are not scaled; bf16 needs no scaling"},
    instead={"precision=fp16": "ddp"},
    modules=("torch.distributed.fsdp",),
    least_torch=(2, 13),  # it reaches into private parts of FSDP2
    needs="torch 2.13; an optimizer that updates each element by itself, or knows DTensor",
    saves="parameters, gradients and states: 1/N of all three per rank",
    costs="an all-gather of each unit's parameters in forward and again in backward",
)  # fmt: skip

ZERO2 = replace(
    FSDP,
    name="zero2",
    summary="gradients and optimizer states are sharded (FSDP2 that keeps gathered parameters)",
    aliases=("zero_2", "zero_stage_2", "shard_grad_op", "fsdp_shard_grad_op"),
    needs="what fsdp needs, and room for all parameters from forward to backward",
    saves="gradients and states: 1/N of both per rank; parameters between steps",
    costs="one all-gather of the parameters per step",
)


def _check_deepspeed(stage: int, offload: bool, tuning: Tuning) -> None:
    from .deepspeed.config import check_config

    check_config(tuning, stage, offload)


def _deepspeed(stage: int, offload: bool = False) -> Profile:
    """Describe one of DeepSpeed's ZeRO stages."""
    suffix, name = "_offload" * offload, f"deepspeed_stage_{stage}{'_offload' * offload}"
    shards = {1: "optimizer states", 2: "gradients and optimizer states",
              3: "parameters, gradients and optimizer states"}[stage]  # fmt: skip
    aliases = [
        f"deepspeed_{stage}{suffix}", f"deepspeed_zero_{stage}{suffix}",
        f"deepspeed_zero{stage}{suffix}", f"ds{stage}{suffix}", f"ds_zero{stage}{suffix}",
    ]  # fmt: skip
    if stage == 2 and not offload:
        aliases += ["deepspeed", "ds"]
    reduces = "states live and update in the memory of the host" if offload else ""
    return Profile(
        name=name,
        summary=f"DeepSpeed ZeRO stage {stage}: {shards} are sharded"
        + ", with optimizer states in the memory of the host" * offload,
        aliases=tuple(aliases),
        takes=GENERAL - {"compile"} | {"deepspeed_config"},
        own=frozenset({"precision", "deepspeed_config"}),
        refuses={
            "compile": "DeepSpeed compiles its engine by means of its own",
            "sync_batchnorm": "DeepSpeed's engine does not let ranks' statistics be joined exactly",
            "cpu_offload": "under DeepSpeed it is part of the name",
        },
        instead={
            "compile": "zero2" if stage < 3 else "fsdp",
            "sync_batchnorm": "zero2" if stage < 3 else "fsdp",
            "cpu_offload": f"deepspeed_stage_{max(stage, 2)}_offload",
        },
        packages=("deepspeed",),
        check=partial(_check_deepspeed, stage, offload),
        modules=("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer"),  # the latter: inductor
        needs="the package deepspeed; float32 parameters; an optimizer that updates each element "
        "by itself",
        saves=f"{shards}: 1/N per rank" + f"; {reduces}" * offload,
        costs="DeepSpeed's own engine, steps and collectives"
        + ", and the way to the host and back" * offload,
    )


BUILT_IN = {
    profile.name: profile
    for profile in (
        DDP, ZERO1, ZERO2, FSDP,
        _deepspeed(1), _deepspeed(2), _deepspeed(3), _deepspeed(2, True), _deepspeed(3, True),
        DP, NONE,
    )
}  # fmt: skip
"""The strategies of this package, in the order in which they are shown."""
