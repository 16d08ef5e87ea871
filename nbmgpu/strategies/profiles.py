"""Profiles of the strategies, readable without torch: names, options, needs and costs.

``tools/strategy_table.py`` generates the table in docs/strategies.md from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from .strategy_options import StrategyOptions

COMPILER_MODULES = ("torch._inductor.compile_fx",)
"""Modules that ``--compile`` imports, which takes seconds."""

COMMON_OPTIONS = frozenset({"accumulate", "precision", "compile", "clip", "checkpointing"})
"""Options of every strategy that trains plain modules."""

DDP_OPTIONS = frozenset({"find_unused", "static_graph", "bucket_views", "compress"})
FSDP_OPTIONS = frozenset({"fsdp_units", "cpu_offload"})

ALTERNATIVES = {
    "cpu_offload": "fsdp",
    "fsdp_units": "fsdp",
    "deepspeed_config": "deepspeed_stage_2",
}
"""The strategy to suggest for options that others do not support."""

REASONS = {
    "find_unused": "it is an option of ddp's reducer",
    "static_graph": "it is an option of ddp's reducer",
    "bucket_views": "it is an option of ddp's reducer",
    "compress": "it is an option of ddp's reducer",
    "fsdp_units": "only fsdp and zero2 shard modules by units",
    "cpu_offload": "the model is not sharded, so there are no shards to offload",
    "deepspeed_config": "it configures DeepSpeed's engine",
    "sync_batchnorm": "batch statistics are not computed by ranks there",
}
"""Why an option is refused, unless the profile has a more specific reason."""


@dataclass(frozen=True)
class Profile:
    """One strategy as a user chooses it.

    Attributes:
        name: value of ``--strategy``.
        summary: one line for people.
        aliases: other names for it, from Lightning, accelerate, DeepSpeed and torch.
        supports: fields of ``StrategyOptions`` that it supports.
        handles: those of them that it applies itself; the rank applies the others.
        unsupported: why it does not support a field of ``StrategyOptions``; the key
            ``precision=fp16`` is about a single value.
        alternatives: the strategy to suggest for such a field.
        shards_data: whether each rank trains on a shard of every global batch.
        in_one_process: whether one rank uses all devices.
        packages: packages that must be installed besides torch.
        modules: modules that take long to import, which the launcher imports before ranks start.
        check: raises ``OptionError`` for what no table can express, in the kernel, before anything
            starts; it must not import torch.
        min_torch: the oldest version of torch that it works with; (0, 0) for any.
        needs, saves, costs: columns of the documentation.
    """

    name: str
    summary: str
    aliases: tuple[str, ...] = ()
    supports: frozenset[str] = COMMON_OPTIONS
    handles: frozenset[str] = frozenset()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    alternatives: Mapping[str, str] = field(default_factory=dict)
    shards_data: bool = True
    in_one_process: bool = False
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    check: Callable[[StrategyOptions], None] | None = None
    min_torch: tuple[int, int] = (0, 0)
    needs: str = ""
    saves: str = ""
    costs: str = ""

    def reason(self, option: str, value: object = None) -> str:
        """Return why ``option``, a field of ``StrategyOptions``, is refused; empty if it is not."""
        if option in self.supports:
            return self.unsupported.get(f"{option}={value}", "")
        return self.unsupported.get(option) or REASONS.get(
            option, "this strategy has no such option"
        )


DDP = Profile(
    name="ddp",
    summary="every rank holds the model; gradients are averaged as they arrive",
    aliases=(
        "distributed_data_parallel", "ddp_notebook", "ddp_spawn", "ddp_fork", "multi_gpu",
        "multi_cpu", "ddp_find_unused_parameters_true",
    ),
    supports=COMMON_OPTIONS | DDP_OPTIONS | {"sync_batchnorm"},
    handles=DDP_OPTIONS,
    alternatives=ALTERNATIVES,
    needs="a model that fits one device with gradients and optimizer states",
    saves="nothing: parameters, gradients and states are whole on every rank",
    costs="one all-reduce of the gradients per step, mostly overlapped with the backward pass",
)  # fmt: skip

NONE = Profile(
    name="none",
    summary="ranks with a process group; the cell distributes its own work",
    aliases=("null", "manual"),
    supports=frozenset(),
    unsupported=dict.fromkeys(
        [*COMMON_OPTIONS, "sync_batchnorm"], "none leaves the cell as it is; write it in the cell"
    ),
    shards_data=False,
    needs="a cell that distributes its own work",
    saves="what the cell saves",
    costs="what the cell costs",
)

DP = Profile(
    name="dp",
    summary="nn.DataParallel: one process copies the model to every GPU at each step",
    aliases=("data_parallel", "dataparallel"),
    supports=COMMON_OPTIONS,
    unsupported={"sync_batchnorm": "one process computes the statistics of each GPU's part alone"},
    alternatives={"sync_batchnorm": "ddp"},
    shards_data=False,
    in_one_process=True,
    needs="several GPUs in one machine; for teaching",
    saves="nothing; the first GPU holds more than the others",
    costs="a copy of the model to every GPU at each step, in one process: slower than ddp",
)

ZERO1 = Profile(
    name="zero1",
    summary="as ddp, and each rank keeps the optimizer states of some of the parameters",
    aliases=("zero_1", "zero_stage_1", "ddp_sharded", "sharded_ddp", "zero_redundancy"),
    supports=COMMON_OPTIONS | DDP_OPTIONS | {"sync_batchnorm"},
    handles=DDP_OPTIONS,
    alternatives=ALTERNATIVES,
    modules=("torch.distributed.optim",),
    needs="an optimizer that updates each parameter separately (not LBFGS)",
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
    supports=COMMON_OPTIONS | FSDP_OPTIONS | {"sync_batchnorm"},
    handles=FSDP_OPTIONS | {"precision"},
    unsupported={"precision=fp16": "its losses are not scaled; bf16 needs no scaling"},
    alternatives={"precision=fp16": "ddp"},
    modules=("torch.distributed.fsdp",),
    min_torch=(2, 13),  # it reaches into private parts of FSDP2
    needs="torch 2.13; an optimizer that updates each element separately, or supports DTensor",
    saves="parameters, gradients and states: 1/N of all three per rank",
    costs="an all-gather of each unit's parameters in forward and again in backward",
)  # fmt: skip

ZERO2 = replace(
    FSDP,
    name="zero2",
    summary="gradients and optimizer states are sharded (FSDP2 that keeps gathered parameters)",
    aliases=("zero_2", "zero_stage_2", "shard_grad_op", "fsdp_shard_grad_op"),
    needs="what fsdp needs, and memory for all parameters from forward to backward",
    saves="gradients and states: 1/N of both per rank; parameters between steps",
    costs="one all-gather of the parameters per step",
)


def _check_deepspeed(stage: int, offload: bool, options: StrategyOptions) -> None:
    from .deepspeed.config import check_config

    check_config(options, stage, offload)


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
    reduces = "states live and update in host memory" if offload else ""
    return Profile(
        name=name,
        summary=f"DeepSpeed ZeRO stage {stage}: {shards} are sharded"
        + ", with optimizer states in host memory" * offload,
        aliases=tuple(aliases),
        supports=COMMON_OPTIONS - {"compile"} | {"deepspeed_config"},
        handles=frozenset({"precision", "deepspeed_config"}),
        unsupported={
            "compile": "DeepSpeed compiles its engine itself",
            "sync_batchnorm": "DeepSpeed's engine does not let ranks' statistics be joined exactly",
            "cpu_offload": "under DeepSpeed it is part of the name",
        },
        alternatives={
            "compile": "zero2" if stage < 3 else "fsdp",
            "sync_batchnorm": "zero2" if stage < 3 else "fsdp",
            "cpu_offload": f"deepspeed_stage_{max(stage, 2)}_offload",
        },
        packages=("deepspeed",),
        check=partial(_check_deepspeed, stage, offload),
        modules=("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer"),  # the latter: inductor
        needs="the package deepspeed; float32 parameters; an optimizer that updates each element "
        "separately",
        saves=f"{shards}: 1/N per rank" + f"; {reduces}" * offload,
        costs="DeepSpeed's own engine, steps and collectives"
        + ", and transfers to the host and back" * offload,
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
