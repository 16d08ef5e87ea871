"""Cells that distribute their training by a library, instead of by ``--strategy``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies import with_mesh
from nbmgpu.strategies.mesh_sizes import DP, dimension, format_mesh

if TYPE_CHECKING:
    from nbmgpu.strategies.base import Strategy, Unit

BY_ITSELF = "%%mgpu --strategy none"
"""The line under which a cell distributes by itself."""

SIZES = (
    "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size", "fsdp_size", "pp_size",
)  # fmt: skip
"""Attributes of accelerate's ParallelismConfig and transformers' DistributedConfig."""


def distributes_by_itself(strategy: Strategy) -> bool:
    """Return whether ``strategy`` leaves the distribution of the training to the cell."""
    return strategy.profile.name == "none"


def refuse(what: str, strategy: str, instead: str = BY_ITSELF) -> None:
    """Refuse a distribution that the cell chooses in addition to the strategy.

    Args:
        what: the code that chooses it.
        strategy: name of the strategy.
        instead: the line that means the same without this code.

    Raises:
        StrategyError: always.
    """
    raise StrategyError(
        format_message(
            f"{what} chooses a distribution in the cell, and --strategy {strategy} another one",
            "Remove it and choose with --strategy (fsdp, tp, deepspeed_stage_2, ...), or let "
            f"the cell distribute by itself: {BY_ITSELF}",
            instead,
        )
    )


def refuse_distributed(units: Iterable[Unit], strategy: Strategy) -> None:
    """Refuse models that the cell has distributed, in addition to the strategy.

    A model inside ``DistributedDataParallel`` is not refused: an average of gradients that are
    averaged is the same.

    Raises:
        StrategyError: a unit has DTensors (``parallelize_module``, ``fully_shard``,
            ``distribute_module``), flat parameters (``FullyShardedDataParallel``), or hooks
            (``replicate``) or a ``ZeroRedundancyOptimizer`` for what the strategy shards.
    """
    from torch.distributed._composable.contract import REGISTRY_KEY

    name = strategy.profile.name
    for unit in units:
        parameters: list[Any] = unit.parameters()
        if any(hasattr(parameter, "device_mesh") for parameter in parameters):
            what = "A model of DTensors (parallelize_module, fully_shard, distribute_module)"
            refuse(what, name, _line_for_dtensors(parameters))
        if any(type(parameter).__name__ == "FlatParameter" for parameter in parameters):
            refuse("FullyShardedDataParallel(model)", name, "%%mgpu --strategy fsdp")
        for optimizer in unit.optimizers if strategy.shards_state else ():
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                refuse("ZeroRedundancyOptimizer", name, "%%mgpu --strategy zero1")
        for module in (m for root in unit.modules for m in root.modules()):
            if strategy.shards_parameters and "replicate" in vars(module).get(REGISTRY_KEY, {}):
                refuse("replicate(model)", name, "%%mgpu --strategy ddp")


def _line_for_dtensors(parameters: Iterable[Any]) -> str:
    """Return the line that distributes as the DTensors' mesh does, by the names of dimensions."""
    placements = [getattr(parameter, "placements", ()) for parameter in parameters]
    mesh = next(p.device_mesh for p in parameters if hasattr(p, "device_mesh"))
    names = mesh.mesh_dim_names or ()
    line = line_for_sizes({name: mesh.size(i) for i, name in enumerate(names)})
    if line != BY_ITSELF:
        return line
    by_rows = all(each and all(p.is_shard(0) for p in each) for each in placements)
    return f"%%mgpu --strategy {'fsdp' if by_rows else 'tp'} --gpus {mesh.size()}"


def line_for(name: str, value: Any) -> str:
    """Return the line of ``%%mgpu`` that means the same as an argument of a library.

    Args:
        name: the name of the argument, such as ``parallelism_config`` or ``fsdp``.
        value: its value.
    """
    if "deepspeed" in name:
        return _line_for_deepspeed(getattr(value, "hf_ds_config", value))
    if "fsdp" in name:
        return "%%mgpu --strategy fsdp"
    return line_for_sizes({size: getattr(value, size, 1) for size in SIZES})


def line_for_sizes(sizes: Mapping[str, Any]) -> str:
    """Return the line of ``%%mgpu`` for sizes of a mesh by dimension, as other tools name them."""
    several = {dimension(n): s for n, s in sizes.items() if isinstance(s, int) and s > 1}
    if not several:
        return BY_ITSELF
    if [*several] == [DP]:
        return f"%%mgpu --strategy ddp --gpus {several[DP]}"
    words = [f"{name}={size}" for name, size in several.items()]
    strategy = with_mesh(None, words)
    if strategy is None:  # no strategy has all of these dimensions
        return BY_ITSELF
    mesh = f" --mesh {format_mesh(several)}" if len(several) > 1 else ""
    return f"%%mgpu --strategy {strategy}{mesh} --gpus {math.prod(several.values())}"


def _line_for_deepspeed(config: Any) -> str:
    """Return the line for a configuration of DeepSpeed: an object with it, a dict or a file."""
    config = getattr(config, "config", config)
    if isinstance(config, str):
        with suppress(OSError, ValueError):
            config = json.loads(Path(config).read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        return "%%mgpu --strategy deepspeed_stage_2"
    split = config.get("tensor_parallel") or {}
    line = line_for_sizes(
        {"tp": split.get("autotp_size", 1), "sp": config.get("sequence_parallel_size", 1)}
    )
    if line != BY_ITSELF:
        return line
    stage = (config.get("zero_optimization") or {}).get("stage", 2)
    return f"%%mgpu --strategy deepspeed_stage_{stage if stage in (1, 2, 3) else 2}"
