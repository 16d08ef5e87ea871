"""The profiles of DeepSpeed's ZeRO stages."""

from __future__ import annotations

from functools import partial

from .option_support import COMMON_OPTIONS, OptionSupport
from .profile import Profile, Requirements
from .strategy_options import StrategyOptions


def _check(stage: int, offload: bool, options: StrategyOptions) -> None:
    from .deepspeed.config import check_config

    check_config(options, stage, offload)


def deepspeed(stage: int, offload: bool = False) -> Profile:
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
    exact = frozenset({"exact"} if stage < 3 else ())
    reduces = "states live and update in host memory" if offload else ""
    return Profile(
        name=name,
        summary=f"DeepSpeed ZeRO stage {stage}: {shards} are sharded"
        + ", with optimizer states in host memory" * offload,
        aliases=tuple(aliases),
        options=OptionSupport(
            COMMON_OPTIONS - {"compile"} | {"deepspeed_config"} | exact,
            handled=frozenset({"precision", "deepspeed_config"}) | exact,
            reasons={
                "compile": "DeepSpeed compiles its engine itself",
                "sync_batchnorm": "DeepSpeed's engine does not combine the ranks' statistics "
                "exactly",
                "cpu_offload": "under DeepSpeed it is part of the name",
                "exact": "a trial of a module needs a copy, and stage 3 ties modules to its engine",
            },
            alternatives={
                "compile": "zero2" if stage < 3 else "fsdp",
                "sync_batchnorm": "zero2" if stage < 3 else "fsdp",
                "cpu_offload": f"deepspeed_stage_{max(stage, 2)}_offload",
                "exact": "fsdp",
            },
        ),
        requirements=Requirements(packages=("deepspeed",), cuda=True),
        check=partial(_check, stage, offload),
        modules=("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer"),  # the latter: inductor
        needs="the package deepspeed; float32 parameters; an optimizer that updates each element "
        "separately",
        saves=f"{shards}: 1/N per rank" + f"; {reduces}" * offload,
        costs="DeepSpeed's own engine, steps and collectives"
        + ", and transfers to the host and back" * offload,
    )
