"""What cannot be exported so that the script has the numbers of the run, and what to do instead."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import nn

from nbmgpu.errors import OptionError, StrategyError, format_message
from nbmgpu.options.run_options import DEFAULTS, RunOptions

from .loop_edits import SHARE
from .statements import without_gradients
from .training_objects import TrainingObjects, called_object, loader_is_sharded

WITH_NBMGPU = "--with-nbmgpu, for a script that calls nbmgpu.run"

REPLICATING = ("ddp", "zero1")
SHARDING = ("fsdp", "zero2", "hsdp")
DEEPSPEED = tuple(f"deepspeed_stage_{s}" for s in ("1", "2", "3", "2_offload", "3_offload"))
TP = "tp"

EXPORTED = (*REPLICATING, *SHARDING, *DEEPSPEED, TP, "none")
"""The strategies for which torch or DeepSpeed have calls that need a few lines in a script."""

STRATEGIES = {
    "pp": "its stages are cut out of the model's own forward pass",
    "sp": "it replaces attention inside of the model",
    "cp": "it replaces attention inside of the model",
    "dp": "it has one process",
    "mp": "it has one process, which spreads layers over GPUs",
}
"""Why the others are not exported, by a part of their names."""

IN_THE_CELL = {
    "accumulate": "step after every Nth batch in the cell",
    "clip": "write nn.utils.clip_grad_norm_ before the step in the cell",
    "checkpointing": "call torch.utils.checkpoint in the model",
    "steps": "end the loop in the cell",
    "cpu_offload": "remove it",
    "sequence_parallel": "remove it",
    "deepspeed_config": "remove it, and write its keys into the script",
    "fsdp_units": "remove it: lists of layers are sharded layer by layer",
    "mesh": "remove it",
}
"""Options that no call before the loop stands for, and what to do instead."""

_OF_TRANSFORMERS = "divide per_device_train_batch_size by the number of ranks"
_OF_LIGHTNING = (
    'give the Trainer strategy="ddp" and devices=N for N ranks, and divide the batch_size of its '
    "DataLoaders by N"
)
TRAINERS = {
    "transformers.trainer": _OF_TRANSFORMERS,
    "trl": _OF_TRANSFORMERS,
    "lightning": _OF_LIGHTNING,
    "pytorch_lightning": _OF_LIGHTNING,
    "accelerate": "divide the batch_size of the DataLoaders by the number of ranks",
}
"""Modules whose trainers distribute by themselves, and how they keep the notebook's batches."""

HARMLESS_METHODS = ("generate",)
"""Methods of models that do not record gradients."""


def check_options(options: RunOptions, on_gpu: bool, restarted: str = "", nodes: int = 1) -> None:
    """Check that a script can do what the options say.

    Args:
        options: of the script.
        on_gpu: whether its ranks have GPUs.
        restarted: why the run has started again with whole batches, if it has.
        nodes: number of machines.

    Raises:
        OptionError: an option, or the strategy, has no plain equivalent.
    """
    name = options.strategy
    if name not in EXPORTED:
        reason = next((why for part, why in STRATEGIES.items() if part in name.split("+")), "")
        what = f"Strategy {name} cannot be exported as a plain script"
        what += f": {reason}" if reason else ""
        raise OptionError(refused(what, f"--strategy {' or '.join(EXPORTED[:3])}"))
    if options.exact == "always" and restarted:
        what = f"The run started again with whole batches, which no plain script has. {restarted}"
        instead = "--exact never after the file: each rank then has its part, and notes name lines"
        raise OptionError(refused(what, instead))
    if options.exact == "always":
        what = (
            "--exact always cannot be exported as a plain script: behind the cell, it divides "
            "layers where samples of a batch meet, or draw random numbers"
        )
        raise OptionError(refused(what, "--exact never, whose numbers differ from one device"))
    for field, instead in IN_THE_CELL.items():
        if getattr(options, field) != DEFAULTS[field]:
            what = f"--{field.replace('_', '-')} cannot be exported as a plain script"
            raise OptionError(refused(what, instead))
    if name == TP and nodes > 1:
        what = "--strategy tp cannot be exported for several nodes"
        raise OptionError(refused(what, "--nodes 1, or --strategy hsdp"))
    if name in DEEPSPEED and options.precision != DEFAULTS["precision"]:
        what = f"--precision {options.precision} cannot be exported for DeepSpeed"
        raise OptionError(refused(what, "--strategy zero1 or fsdp, or without it"))
    if options.precision == "fp16":
        what = "--precision fp16 cannot be exported as a plain script: losses have to be scaled"
        raise OptionError(refused(what, "--precision bf16, or a GradScaler in the cell"))
    if options.batch == "per-rank":
        what = "--batch per-rank cannot be exported: the script's batches are those of one device"
        raise OptionError(refused(what, "multiply the batch size in the notebook"))
    if options.sync_batchnorm and not on_gpu:
        what = "--sync-batchnorm cannot be exported for CPU ranks: torch has it for GPUs alone"
        raise OptionError(refused(what, "remove it"))


def check_objects(objects: TrainingObjects, values: Mapping[str, Any]) -> None:
    """Check that models and loaders are of a kind that a script can distribute.

    Raises:
        StrategyError: they are not.
    """
    if objects.loose:
        what = "An optimizer of the cell trains tensors that belong to no model"
        raise StrategyError(refused(what, "make them nn.Parameters of a module"))
    for name in objects.loaders:
        if not loader_is_sharded(values[name]):
            what = f"`{name}` draws no batches of indices that ranks could share"
            raise StrategyError(refused(what, "a dataset with __getitem__ and a batch size"))


def check_models(objects: TrainingObjects, values: Mapping[str, Any]) -> None:
    """Check that all models that may be trained have names by which a script can wrap them.

    Raises:
        StrategyError: they have not, so ranks would train models of their own.
    """
    if not objects.models and not objects.made_models:
        what = "No model has a name outside of functions and is trained by an optimizer of torch"
        instead = "make model and optimizer in statements of their own, in the notebook or the cell"
        raise StrategyError(refused(what, instead))
    named = [values[name] for name in objects.of_kind("module")]
    known = {id(part) for model in named for part in model.modules()}
    for name in objects.of_kind("other"):
        for part in _parts(values[name]):
            is_model = isinstance(part, nn.Module) and any(True for _ in part.parameters())
            if is_model and id(part) not in known:
                what = f"`{name}` holds a model that has no name of its own"
                raise StrategyError(refused(what, "give it one: model = ..."))
            if is_model and any(part is model for model in named):
                what = f"`{name}` holds a model, and a script wraps the model under another name"
                raise StrategyError(refused(what, f"make `{name}` in the cell, or pass the model"))


def _parts(value: Any) -> list[Any]:
    """Return what a container, or an object of the notebook, holds."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set):
        return list(value)
    is_own = type(value).__module__ == "__main__"
    return list(vars(value).values()) if is_own and hasattr(value, "__dict__") else []


def check_code(
    tree: ast.Module, objects: TrainingObjects, values: Mapping[str, Any], divided: bool
) -> None:
    """Check one piece of code: the cell, or a function that it needs.

    Args:
        tree: the code.
        objects: what is trained.
        values: the notebook's objects by name.
        divided: whether each rank has a part of a batch.

    Raises:
        StrategyError: ranks would not have the gradients of one device.
    """
    evaluated = set(without_gradients(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = called_object(node, values)
        module = getattr(called, "__module__", None) or ""
        if trainer := next((name for name in TRAINERS if module.startswith(name)), ""):
            what = f"`{ast.unparse(node.func)}` distributes the training by itself"
            instead = f"copy the cells into a script for torchrun, and {TRAINERS[trainer]}"
            raise StrategyError(refused(what, instead))
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                is_partial = name in objects.models and _computes(values[name], attr)
                if is_partial and divided and id(node) not in evaluated:
                    what = f"The cell calls {name}.{attr}: ranks average gradients of {name}() only"
                    raise StrategyError(refused(what, f"call {name}.{attr} in its forward"))
    for loop in ast.walk(tree) if divided else ():
        if isinstance(loop, ast.For | ast.While) and _has_backward(loop):
            _check_reductions(loop)


def check_whole_batches(strategy: str, code: str) -> None:
    """Check that code leaves batches whole, for a strategy that gives them to every rank.

    Raises:
        StrategyError: it divides them.
    """
    if f"{SHARE}(" in code:
        what = f"--strategy {strategy} gives every rank the whole batch, and the cell divides it"
        raise StrategyError(refused(what, f"remove {SHARE}"))


def _check_reductions(loop: ast.For | ast.While) -> None:
    for node in ast.walk(loop):
        match node:
            case ast.keyword(arg="reduction", value=ast.Constant(value="sum")):
                what = "The loss is a sum over samples, and ranks average gradients"
                raise StrategyError(refused(what, 'reduction="mean", times the batch size'))
            case ast.Call(func=ast.Attribute(attr="backward"), args=[_, *_]):
                what = "backward() has a gradient as its argument, which ranks cannot weigh"
                raise StrategyError(refused(what, "a loss of one number"))


def refused(what: str, instead: str) -> str:
    """Return the message of a refusal."""
    return format_message(what, instead=f"{instead}; or {WITH_NBMGPU}")


def _has_backward(loop: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(loop))


def _computes(model: Any, attr: str) -> bool:
    """Return whether ``model.attr(...)`` computes with a part of the model."""
    if (hasattr(nn.Module, attr) and attr != "forward") or attr in HARMLESS_METHODS:
        return False
    part = getattr(model, attr, None)
    return isinstance(part, nn.Module) or callable(part)
