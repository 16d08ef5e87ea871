"""The configuration of DeepSpeed's engine, and what the user's JSON file may change in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.strategy_options import StrategyOptions

AUTO = "auto"
"""The value that Hugging Face's Trainer replaces with its own setting."""

OPTION_KEYS = {
    "gradient_accumulation_steps": "--accumulate N",
    "managed_gradient_accumulation": "--accumulate N",
    "gradient_clipping": "--clip NORM, or clip_grad_norm_ in the cell",
}
"""Keys that have an option of their own, and that option."""

REFUSED_KEYS = {
    "optimizer": "the cell has an optimizer of its own",
    "scheduler": "the cell steps its scheduler itself",
    "data_types": "precision is chosen with --precision bf16 or fp16",
    "amp": "it needs NVIDIA's apex; precision is chosen with --precision bf16 or fp16",
    "torch_autocast": "precision is chosen with --precision, or by autocast in the cell",
    "compression_training": "it changes what is trained",
    "data_efficiency": "it changes which samples are seen, and when",
    "curriculum_learning": "it changes which samples are seen, and when",
    "progressive_layer_drop": "it leaves out layers at random",
    "sparse_gradients": "its gradients are no longer those of one device",
    "pipeline": "stages have a strategy of their own",
    "tensor_parallel": "split layers have a strategy of their own",
    "sequence_parallel_size": "split sequences have a strategy of their own",
    "prescale_gradients": "gradients are averaged, and not summed",
    "gradient_predivide_factor": "gradients are averaged, and not summed",
    "quantize_training": "it changes what is trained",
    "eigenvalue": "it belongs to compression",
    "hybrid_engine": "it is for generating, not for training",
    "elasticity": "the number of ranks is fixed for the run",
    "autotuning": "it measures many runs, and this is one",
    "compile": "DeepSpeed's own compiler is not used here",
    "checkpoint": "checkpoints are what the cell saves",
    "nebula": "checkpoints are what the cell saves",
    "zenflow": "it updates parameters late",
}
"""Keys that would change what is trained, with the reason."""

HARMLESS = {
    "activation_checkpointing", "comms_logger", "csv_monitor", "dump_state", "flops_profiler",
    "memory_breakdown", "steps_per_print", "tensorboard", "wall_clock_breakdown", "wandb",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
}  # fmt: skip
"""Keys for logging and measurement, which do not change what is trained."""

ZERO_HARMLESS = {
    "allgather_bucket_size", "allgather_partitions", "ignore_unused_parameters",
    "memory_efficient_linear", "reduce_bucket_size", "reduce_scatter", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_prefetch_bucket_size", "sub_group_size",
}  # fmt: skip
"""Keys of ``zero_optimization`` for sizes and speed, which do not change what is trained."""

ZERO_FIXED = {
    "contiguous_gradients", "overlap_comm", "stage3_param_persistence_threshold",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    "stage3_model_persistence_threshold",
}  # fmt: skip
"""Keys of ``zero_optimization`` that are ignored: they only affect speed."""

ZERO_REFUSED_KEYS = {
    "zero_quantized_weights": "weights would be rounded",
    "zero_quantized_nontrainable_weights": "weights would be rounded",
    "zero_quantized_gradients": "gradients would be rounded",
    "round_robin_gradients": "DeepSpeed then orders the partitions differently",
    "zero_hpz_partition_size": "a second partition of the weights is not kept up to date here",
    "mics_shard_size": "the model is sharded over all ranks here",
    "zenflow": "it updates parameters late",
    "super_offload": "it steps ahead of the check for overflow",
}
"""Keys of ``zero_optimization`` that would change what is trained, with the reason."""

STRATEGIES = {"pipeline": "pp", "tensor_parallel": "tp", "sequence_parallel_size": "sp"}
"""Keys that have a strategy of their own, and that strategy."""

UNKNOWN = "it is not known whether it changes what is trained"


def base_config(stage: int, offload: bool, precision: str | None) -> dict[str, Any]:
    """Return the configuration that trains an unchanged cell, in half ``precision`` if given."""
    half = {precision: {"enabled": True}} if precision in ("bf16", "fp16") else {}
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    return {
        "train_micro_batch_size_per_gpu": 1,  # required, but not used
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # DeepSpeed's default is 1.0
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # compiling it takes more than a minute
        "steps_per_print": None,
        "zero_optimization": zero,
        **half,
    }


def check_config(options: StrategyOptions, stage: int, offload: bool) -> None:
    """Refuse a configuration file before the ranks start, as ``read_config`` would in them."""
    read_config(options, stage, offload, 0, lambda topic, text: None)


def read_config(
    options: StrategyOptions,
    stage: int,
    offload: bool,
    elements: int,
    notice: Callable[[str, str], None],
) -> dict[str, Any]:
    """Return the configuration of the engine, merged with that of the user's file.

    Args:
        options: the options of the run, with the path of the file.
        stage: the ZeRO stage of the strategy.
        offload: whether the strategy offloads to host memory.
        elements: number of elements of the model, which limits the size of buckets.
        notice: shows a text to the user, under a topic.

    Raises:
        StrategyError: the file cannot be read, or has a key that would change what is trained.
    """
    config, path = base_config(stage, offload, options.precision), options.deepspeed_config
    zero = config["zero_optimization"]
    zero["reduce_bucket_size"] = min(500_000_000, max(elements, 2))
    if path is None:
        return config
    given = _load(path)
    ignored = []
    for key, value in given.items():
        if value == AUTO or key.startswith("_") or key == "zero_optimization":
            continue
        if key in REFUSED_KEYS and value not in (False, None, {}):
            _refuse(key, REFUSED_KEYS[key], STRATEGIES.get(key))
        elif key in OPTION_KEYS and value != config.get(key):
            _refuse(f"{key}: {value}", f"it has an option of its own, {OPTION_KEYS[key]}")
        elif key in ("train_batch_size", "train_micro_batch_size_per_gpu"):
            ignored.append(key)
        elif key in ("fp16", "bf16", "bfloat16"):
            name = "fp16" if key == "fp16" else "bf16"
            enabled = isinstance(value, dict) and value.get("enabled") not in (False, None, AUTO)
            if enabled and name not in config:
                _refuse(f"{key}.enabled", f"precision is chosen with --precision {name}")
            if name in config and isinstance(value, dict):
                config[name] |= {k: v for k, v in value.items() if v != AUTO} | {"enabled": True}
        elif key in HARMLESS:
            config[key] = value
        elif key not in config and key not in REFUSED_KEYS:
            _refuse(key, UNKNOWN)
    _merge_zero(given.get("zero_optimization", {}), zero, stage)
    if ignored:
        notice(
            "deepspeed-config",
            f"{Path(path).name}: {' and '.join(ignored)} have no effect; the batch size is "
            "the loader's, split over the ranks.",
        )
    return config


def _load(path: str) -> dict[str, Any]:
    allowed = 'DeepSpeed takes a JSON object, such as {"zero_optimization": {}}'
    instead = "--deepspeed-config with another file, or without this flag"
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"The DeepSpeed configuration {path} cannot be read: {error}"
        raise StrategyError(format_message(what, allowed, instead)) from None
    if not isinstance(given, dict):
        what = (
            f"The DeepSpeed configuration {path} contains no object, but a {type(given).__name__}"
        )
        raise StrategyError(format_message(what, allowed, instead))
    return given


def _merge_zero(given: dict[str, Any], zero: dict[str, Any], stage: int) -> None:
    for key, value in given.items():
        if value == AUTO:
            continue
        if key == "stage":
            if value != stage:
                _refuse(
                    f"stage {value}",
                    f"the strategy is stage {stage}",
                    f"deepspeed_stage_{value}",
                )
        elif key in ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_params"):
            _merge_offload(key, value, zero, stage)
        elif key in ZERO_HARMLESS:
            zero[key] = value
        elif key not in ZERO_FIXED and value not in (False, None, 0, {}):
            _refuse(key, ZERO_REFUSED_KEYS.get(key, UNKNOWN))


def _merge_offload(key: str, value: Any, zero: dict[str, Any], stage: int) -> None:
    device = value.get("device") if isinstance(value, dict) else value and "cpu"
    if device in (None, False, "none"):
        return
    if device != "cpu":
        _refuse(f"{key} to {device}", "offloading goes to the memory of the host")
    if key not in zero:
        _refuse(
            key,
            "offloading is part of the strategy's name",
            f"deepspeed_stage_{max(stage, 2)}_offload",
        )
    zero[key] = {**value, "device": "cpu"}


def _refuse(setting: str, reason: str, strategy: str | None = None) -> None:
    instead = f"%%mgpu --strategy {strategy}" if strategy else "the file without this key"
    raise StrategyError(
        format_message(f"--deepspeed-config: {setting} is not supported: {reason}", "", instead)
    )
