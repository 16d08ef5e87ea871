"""The calls by which an exported script trains with DeepSpeed's engine."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nbmgpu.errors import StrategyError

from .refusals import refused
from .source_edits import SourceEdits
from .statements import last_name
from .training_objects import TrainingObjects

NOT_SPLIT = {
    "grad": "reads gradients, of which each rank has a part",
    "clip_grad_value_": "clips gradients, of which each rank has a part",
    "GradScaler": "scales losses, which DeepSpeed does itself",
    "autocast": "has autocast, which DeepSpeed turns off in its engine",
    "load_state_dict": "loads a state, and parameters are the engine's by then",
}
"""Names in code that trains, and why a script for DeepSpeed cannot have them."""


@dataclass
class EngineOptions:
    """What the configuration of the engine takes over from the loop.

    Attributes:
        clipping: sources of the maximum norm of gradients; at most one.
        accumulates: whether several backward passes may come before a step.
    """

    clipping: set[str] = field(default_factory=set)
    accumulates: bool = False

    def read(self, edits: SourceEdits) -> None:
        """Read a piece of code, and remove the calls of ``clip_grad_norm_``.

        Raises:
            StrategyError: the engine cannot do what the code does.
        """
        for node in ast.walk(edits.tree):
            name = _name_of(node)
            if name in NOT_SPLIT:
                what = f"The code {NOT_SPLIT[name]}: `{ast.unparse(node)}`"
                raise StrategyError(refused(what, "--strategy zero1 or fsdp"))
        conditions = [node for node in ast.walk(edits.tree) if isinstance(node, ast.If)]
        conditional = {id(inner) for node in conditions for inner in ast.walk(node)}
        clipping = [n for n in ast.walk(edits.tree) if isinstance(n, ast.Call) and _is_clipping(n)]
        statements = {id(n.value): n for n in ast.walk(edits.tree) if isinstance(n, ast.Expr)}
        for call in clipping:
            if id(call) not in statements or id(call) in conditional:
                what = f"DeepSpeed clips at each step: `{ast.unparse(call)}` is conditional or read"
                raise StrategyError(refused(what, "clip_grad_norm_ as a statement before the step"))
            self.clipping.add(_norm_of(call))
            edits.remove(statements[id(call)])
        if len(self.clipping) > 1:
            what = f"Gradients are clipped to several norms: {' and '.join(sorted(self.clipping))}"
            raise StrategyError(refused(what, "one of them"))
        blocks = _blocks(edits.tree)
        backward = [block for block in blocks if "backward" in block]
        self.accumulates |= (
            len(backward) > 1
            or any(block.count("backward") > 1 or "step" not in block for block in backward)
            or any(
                _name_of(node) == "step" and id(node) in conditional
                for node in ast.walk(edits.tree)
            )
        )


def initialize(
    model: str,
    objects: TrainingObjects,
    values: Mapping[str, Any],
    strategy: str,
    found: EngineOptions,
) -> list[str]:
    """Return the statements that make the engine of ``model``, and its optimizer.

    Args:
        model: the name of the model.
        objects: what is trained.
        values: the notebook's objects by name.
        strategy: such as ``deepspeed_stage_2_offload``.
        found: what the configuration takes over from the loop.

    Raises:
        StrategyError: the engine needs one model and the one optimizer that trains all of it.
    """
    optimizer = _optimizer_of(model, objects, values)
    stage = int(strategy.split("_")[2])
    zero = [f'"stage": {stage}']
    if strategy.endswith("offload"):
        zero.append('"offload_optimizer": {"device": "cpu"}')
        zero += ['"offload_param": {"device": "cpu"}'] if stage == 3 else []
    config = [
        '"train_micro_batch_size_per_gpu": 1,  # required, and not used here',
        f'"gradient_clipping": {next(iter(found.clipping), "0.0")},',
        '"zero_allow_untested_optimizer": True,',
        '"zero_force_ds_cpu_optimizer": False,',
        f'"zero_optimization": {{{", ".join(zero)}}},',
    ]
    if found.accumulates:
        config.append('"managed_gradient_accumulation": False,  # every step() is a step')
    lines = [f"{model}, *_ = deepspeed.initialize(", f"    model={model},"]
    lines += [f"    optimizer={optimizer},", "    config={"]
    lines += [*(f"        {line}" for line in config), "    },", ")"]
    return [*lines, f"{optimizer} = EngineOptimizer({model})"]


def _optimizer_of(model: str, objects: TrainingObjects, values: Mapping[str, Any]) -> str:
    others = [*objects.models, *objects.made_models]
    optimizers = objects.of_kind("optimizer")
    if others != [model] or len(optimizers) != 1:
        what = "DeepSpeed's engine trains one model with one optimizer, made before the cell"
        raise StrategyError(refused(what, "--strategy zero1 or fsdp"))
    name = optimizers[0]
    if isinstance(values[name], torch.optim.LBFGS):
        what = f"`{name}` is LBFGS, whose steps run the model several times"
        raise StrategyError(refused(what, "--strategy ddp"))
    trained = {id(p) for group in values[name].param_groups for p in group["params"]}
    if not trained.issuperset(id(p) for p in values[model].parameters() if p.requires_grad):
        what = f"DeepSpeed's engine trains all of `{model}`, and `{name}` has a part of it"
        raise StrategyError(refused(what, f"set requires_grad of the others, or give `{name}` all"))
    return name


def check_unused(name: str, optimizer: Any) -> None:
    """Check that an optimizer has no states yet, which the engine would not take over.

    Raises:
        StrategyError: it has.
    """
    if optimizer.state:
        what = f"`{name}` has taken steps before the cell, and DeepSpeed starts with new states"
        raise StrategyError(refused(what, f"make `{name}` anew, or --strategy zero1 or fsdp"))


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _is_clipping(call: ast.Call) -> bool:
    return last_name(call.func) == "clip_grad_norm_"


def _norm_of(call: ast.Call) -> str:
    """Return the source of the maximum norm, a number or a name of the notebook.

    Raises:
        StrategyError: it is neither, or another norm than that of Euclid is meant.
    """
    given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "max_norm")]
    others = {keyword.arg for keyword in call.keywords} - {"max_norm", "foreach"}
    if len(given) == 1 and isinstance(given[0], ast.Constant | ast.Name) and not others:
        return ast.unparse(given[0])
    what = f"`{ast.unparse(call)}` has no norm that could be in DeepSpeed's configuration"
    raise StrategyError(refused(what, "a number as the norm"))


def _blocks(tree: ast.AST) -> Sequence[list[str]]:
    """Return, for each block of statements, the methods that its own statements call."""
    return [
        [
            statement.value.func.attr
            for statement in body
            if isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and isinstance(statement.value.func, ast.Attribute)
        ]
        for node in ast.walk(tree)
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(body, list)
    ]
