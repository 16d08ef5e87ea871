"""The configuration of DeepSpeed's engine: ours, and what a user's own JSON may change in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.strategy_options import StrategyOptions

AUTO = "auto"
"""What trainers that fill in a configuration leave to themselves."""

OURS = {
    "gradient_accumulation_steps": "--accumulate N",
    "managed_gradient_accumulation": "--accumulate N",
    "gradient_clipping": "--clip NORM, or clip_grad_norm_ in the cell",
}
"""Keys whose matter is decided elsewhere, and where."""

REFUSED = {
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
    "pipeline": "the model is not split into stages here",
    "tensor_parallel": "the model is not split into stages here",
    "sequence_parallel_size": "sequences are not split here",
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
"""Keys that would train something else than the cell says, with the reason."""

HARMLESS = {
    "activation_checkpointing", "comms_logger", "csv_monitor", "dump_state", "flops_profiler",
    "memory_breakdown", "steps_per_print", "tensorboard", "wall_clock_breakdown", "wandb",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
}  # fmt: skip
"""Keys that change what is said or counted, and not what is trained."""

ZERO_HARMLESS = {
    "allgather_bucket_size", "allgather_partitions", "ignore_unused_parameters",
    "memory_efficient_linear", "reduce_bucket_size", "reduce_scatter", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_prefetch_bucket_size", "sub_group_size",
}  # fmt: skip
"""Keys of ``zero_optimization`` that change sizes and times, and not what is trained."""

ZERO_FIXED = {
    "contiguous_gradients", "overlap_comm", "stage3_param_persistence_threshold",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    "stage3_model_persistence_threshold",
}  # fmt: skip
"""Keys that stay as they are here, whatever is given: they make nothing but speed."""

ZERO_REFUSED = {
    "zero_quantized_weights": "weights would be rounded",
    "zero_quantized_nontrainable_weights": "weights would be rounded",
    "zero_quantized_gradients": "gradients would be rounded",
    "round_robin_gradients": "DeepSpeed's own map of the partitions is then of another order",
    "zero_hpz_partition_size": "a second partition of the weights is not kept up to date here",
    "mics_shard_size": "the model is sharded over all ranks here",
    "zenflow": "it updates parameters late",
    "super_offload": "it steps ahead of the check for overflow",
}
"""Keys of ``zero_optimization`` that would train something else, with the reason."""

UNKNOWN = "it is not known to leave the training as it is"


def base_config(stage: int, offload: bool, precision: str | None) -> dict[str, Any]:
    """Return the configuration that trains a cell as it stands, or in half ``precision``."""
    half = {precision: {"enabled": True}} if precision in ("bf16", "fp16") else {}
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    return {
        "train_micro_batch_size_per_gpu": 1,  # only counted with, never used
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # 1.0 unless said
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # it would be compiled for more than a minute
        "steps_per_print": None,
        "zero_optimization": zero,
        **half,
    }


def check_config(tuning: StrategyOptions, stage: int, offload: bool) -> None:
    """Refuse a user's own file that ``read_config`` would refuse in the ranks."""
    read_config(tuning, stage, offload, 0, lambda topic, text: None)


def read_config(
    tuning: StrategyOptions,
    stage: int,
    offload: bool,
    elements: int,
    say: Callable[[str, str], None],
) -> dict[str, Any]:
    """Return the configuration of the engine, with the keys of the user's own file.

    ``elements`` is the number of elements of the model: buckets need not be larger.
    ``say`` takes a topic and a text for the user.

    Raises:
        StrategyError: the file cannot be read, or asks for what does not train the cell as it is.
    """
    config, path = base_config(stage, offload, tuning.precision), tuning.deepspeed_config
    zero = config["zero_optimization"]
    zero["reduce_bucket_size"] = min(500_000_000, max(elements, 2))
    if path is None:
        return config
    given = _load(path)
    silent = []
    for key, value in given.items():
        if value == AUTO or key.startswith("_") or key == "zero_optimization":
            continue
        if key in REFUSED and value not in (False, None, {}):
            _refuse(key, REFUSED[key])
        elif key in OURS and value != config.get(key):
            _refuse(f"{key}: {value}", f"it is said by {OURS[key]}")
        elif key in ("train_batch_size", "train_micro_batch_size_per_gpu"):
            silent.append(key)
        elif key in ("fp16", "bf16", "bfloat16"):
            name = "fp16" if key == "fp16" else "bf16"
            asked = isinstance(value, dict) and value.get("enabled") not in (False, None, AUTO)
            if asked and name not in config:
                _refuse(f"{key}.enabled", f"precision is said by --precision {name}")
            if name in config and isinstance(value, dict):
                config[name] |= {k: v for k, v in value.items() if v != AUTO} | {"enabled": True}
        elif key in HARMLESS:
            config[key] = value
        elif key not in config and key not in REFUSED:
            _refuse(key, UNKNOWN)
    _merge_zero(given.get("zero_optimization", {}), zero, stage)
    if silent:
        say(
            "deepspeed-config",
            f"{Path(path).name}: {' and '.join(silent)} have no effect; the batch is the "
            "loader's, shared out to the ranks.",
        )
    return config


def _load(path: str) -> dict[str, Any]:
    allowed = 'It is to be a JSON object, as DeepSpeed takes it: {"zero_optimization": {}}'
    instead = "--deepspeed-config with another file, or no such flag at all"
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"The DeepSpeed configuration {path} cannot be read: {error}"
        raise StrategyError(format_message(what, allowed, instead)) from None
    if not isinstance(given, dict):
        what = f"The DeepSpeed configuration {path} holds a {type(given).__name__}, no object"
        raise StrategyError(format_message(what, allowed, instead))
    return given


def _merge_zero(given: dict[str, Any], zero: dict[str, Any], stage: int) -> None:
    for key, value in given.items():
        if value == AUTO:
            continue
        if key == "stage":
            if value != stage:
                _refuse(f"stage {value}", f"the strategy is stage {stage}", value)
        elif key in ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_params"):
            _merge_offload(key, value, zero, stage)
        elif key in ZERO_HARMLESS:
            zero[key] = value
        elif key not in ZERO_FIXED and value not in (False, None, 0, {}):
            _refuse(key, ZERO_REFUSED.get(key, UNKNOWN))


def _merge_offload(key: str, value: Any, zero: dict[str, Any], stage: int) -> None:
    device = value.get("device") if isinstance(value, dict) else value and "cpu"
    if device in (None, False, "none"):
        return
    if device != "cpu":
        _refuse(f"{key} to {device}", "offloading goes to the memory of the host")
    if key not in zero:
        _refuse(key, "offloading is part of the strategy's name", f"{max(stage, 2)}_offload")
    zero[key] = {**value, "device": "cpu"}


def _refuse(what: str, why: str, stage: Any = None) -> None:
    instead = f"--strategy deepspeed_stage_{stage}" if stage else "the file without it"
    raise StrategyError(
        format_message(f"--deepspeed-config: {what} cannot be had: {why}", "", instead)
    )
