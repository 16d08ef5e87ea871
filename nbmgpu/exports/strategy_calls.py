"""The calls of torch by which an exported script distributes models and optimizers."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nbmgpu.errors import StrategyError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies.tp.named_plan import NamedPlan

from . import parallel_plan
from .refusals import DEEPSPEED, REPLICATING, SHARDING, TP, refused
from .source_edits import SourceEdits
from .training_objects import called_object

DDP = "from torch.nn.parallel import DistributedDataParallel"
FULLY_SHARD = "from torch.distributed.fsdp import fully_shard"
MIXED = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard"
ZERO = "from torch.distributed.optim import ZeroRedundancyOptimizer"
HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"

SUMMARIES = {
    "ddp": "DistributedDataParallel",
    "zero1": "DistributedDataParallel and ZeroRedundancyOptimizer",
    "fsdp": "FSDP2 (fully_shard)",
    "zero2": "FSDP2 (fully_shard) that keeps gathered parameters until the backward pass",
    "hsdp": "FSDP2 (fully_shard) inside groups of ranks, replicated between them",
    "tp": "tensor parallelism (parallelize_module)",
    **{name: f"DeepSpeed (ZeRO stage {name[16:].replace('_', ' with ')})" for name in DEEPSPEED},
    "none": "torch.distributed, as the cell itself says",
}
"""What each strategy is called in the header of a script."""


@dataclass(frozen=True)
class StrategyCalls:
    """The source that one strategy adds to a script.

    Attributes:
        options: of the run.
        world_size: number of ranks.
        on_gpu: whether ranks have GPUs.
        unwraps: whether code reads attributes of a model that its wrapper does not have.
    """

    options: RunOptions
    world_size: int
    on_gpu: bool
    unwraps: bool = False

    @property
    def device(self) -> str:
        """The kind of the ranks' devices."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def shards_parameters(self) -> bool:
        """Whether optimizers have to be made after models are distributed."""
        return self.options.strategy in (*SHARDING, TP)

    @property
    def divides_batches(self) -> bool:
        """Whether each rank has a part of a batch; else all ranks have the whole one."""
        return self.options.strategy in (*REPLICATING, *SHARDING, *DEEPSPEED)

    @property
    def has_engine(self) -> bool:
        """Whether an engine of DeepSpeed takes the steps."""
        return self.options.strategy in DEEPSPEED

    @property
    def decorator(self) -> str:
        """The decorator of the script's ``main``, or an empty string."""
        return parallel_plan.DECORATOR if self.options.strategy == TP else ""

    def imports(self) -> list[str]:
        """Return the import statements that ``wrap`` needs."""
        options = self.options
        if options.strategy in REPLICATING:
            found = [DDP] if not self.unwraps else []
            found += [HOOKS] if options.compress else []
            return found + ([ZERO] if options.strategy == "zero1" else [])
        if self.has_engine:
            return ["import deepspeed"]
        if options.strategy == TP:
            return list(parallel_plan.IMPORTS)
        if self.shards_parameters:
            found = [MIXED if options.precision == "bf16" else FULLY_SHARD]
            return found + ([parallel_plan.MESH] if options.strategy == "hsdp" else [])
        return []

    def wrap(self, name: str, model: nn.Module | None) -> list[str]:
        """Return the statements that distribute the model ``name``, which exists.

        Args:
            name: of the model.
            model: the model; None if the cell makes it.

        Raises:
            StrategyError: the strategy needs the model for that, or cannot split it.
        """
        options = self.options
        before = [f"{name}.compile()"] if options.compile else []
        if options.sync_batchnorm and self.divides_batches:
            before.append(f"{name} = torch.nn.SyncBatchNorm.convert_sync_batchnorm({name})")
        if options.precision == "bf16" and options.strategy not in SHARDING:
            before.append(
                f'{name}.forward = torch.autocast("{self.device}", torch.bfloat16)({name}.forward)'
            )
        if self.has_engine and model is None:
            what = f"DeepSpeed's engine is made before the cell, and the cell makes `{name}`"
            raise StrategyError(refused(what, "make model and optimizer in an earlier cell"))
        if options.strategy in REPLICATING:
            return [*before, *self._replicate(name)]
        if options.strategy == TP:
            named = NamedPlan.of(options.tp_plan)
            split = parallel_plan.parallelize(name, model, named, self.world_size)
            return [*before, parallel_plan.mesh(self.device), *split]
        if self.shards_parameters:
            return [*before, *self._shard(name, model)]
        return before

    def _replicate(self, name: str) -> list[str]:
        options = self.options
        arguments = [name]
        arguments += ["find_unused_parameters=True"] if options.find_unused else []
        arguments += ["static_graph=True"] if options.static_graph else []
        arguments += ["gradient_as_bucket_view=True"] if options.bucket_views else []
        kind = "Replicated" if self.unwraps else "DistributedDataParallel"
        lines = [f"{name} = {kind}({', '.join(arguments)})"]
        if options.compress:
            hook = f"default_hooks.{options.compress}_compress_hook"
            lines.append(f"{name}.register_comm_hook(None, {hook})")
        return lines

    def _shard(self, name: str, model: nn.Module | None) -> list[str]:
        options, arguments = self.options, ""
        before: list[str] = []
        if options.strategy == "zero2":
            arguments += ", reshard_after_forward=False"
        if options.strategy == "hsdp":
            sizes = "(2, dist.get_world_size() // 2)"
            dimensions = 'mesh_dim_names=("replicate", "shard")'
            before.append(f'device_mesh = init_device_mesh("{self.device}", {sizes}, {dimensions})')
            arguments += ", mesh=device_mesh"
        if options.precision == "bf16":
            policy = "param_dtype=torch.bfloat16, reduce_dtype=torch.float32"
            before.append(f"precision = MixedPrecisionPolicy({policy}, output_dtype=torch.float32)")
            arguments += ", mp_policy=precision"
        stacks = [] if model is None else list(_stacks(model))
        for stack in stacks:
            before += [
                f"for layer in {name}.{stack}:",
                f"    fully_shard(layer{arguments})",
            ]
        return [*before, f"fully_shard({name}{arguments})"]

    def state(self, name: str) -> str:
        """Return an expression for the whole state of a distributed model, on all ranks."""
        if self.options.strategy in REPLICATING:
            return f"{name}.module.state_dict()"
        if self.has_engine:
            return f"engine_state_dict({name})"
        return f"full_state_dict({name})" if self.shards_parameters else f"{name}.state_dict()"


def _stacks(model: nn.Module) -> Iterator[str]:
    """Yield the names of the outermost lists of layers."""
    found: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{n}.") for n in found):
            is_plain = all(part.isidentifier() for part in name.split("."))
            if is_plain and any(True for _ in module.parameters()):
                found.append(name)
                yield name


def use_zero_optimizers(edits: SourceEdits, values: Mapping[str, Any]) -> tuple[int, str]:
    """Turn the construction of optimizers into that of ``ZeroRedundancyOptimizer``.

    Returns:
        How many were turned, and the source of one that could not be, or an empty string.
    """
    turned = 0
    for node in ast.walk(edits.tree):
        if not isinstance(node, ast.Call):
            continue
        called = called_object(node, values)
        if not (isinstance(called, type) and issubclass(called, torch.optim.Optimizer)):
            continue
        source = ast.unparse(node)
        try:
            bound = inspect.signature(called).bind(*node.args, **_keywords(node))
        except (TypeError, ValueError):
            return turned, source
        first, *others = bound.arguments.items()
        arguments = [_listed(edits.source(first[1]))]
        arguments.append(f"optimizer_class={edits.source(node.func)}")
        arguments += [f"{name}={edits.source(value)}" for name, value in others]
        edits.replace(node, f"ZeroRedundancyOptimizer({', '.join(arguments)})")
        turned += 1
    return turned, ""


def _listed(parameters: str) -> str:
    """Return parameters with lists in groups: ZeroRedundancyOptimizer iterates over them twice."""
    edits = SourceEdits(parameters)
    for group in ast.walk(edits.tree):
        pairs = zip(group.keys, group.values, strict=True) if isinstance(group, ast.Dict) else ()
        for key, value in pairs:
            if isinstance(key, ast.Constant) and key.value == "params":
                edits.surround(value, "list(", ")")
    return edits.result()


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg or "": keyword.value for keyword in call.keywords}
