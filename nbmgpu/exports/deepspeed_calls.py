"""The calls by which an exported script trains with DeepSpeed's engine."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nbmgpu.errors import StrategyError

from .gradient_clipping import check_clips_all, is_clipping, norm_of
from .parameter_uses import names_optimizer
from .refusals import refused
from .source_edits import SourceEdits
from .statements import last_name, without_gradients
from .training_objects import TrainingObjects

NOT_SPLIT = {
    "grad": "reads gradients, of which each rank has a part",
    "clip_grad_value_": "clips gradients, of which each rank has a part",
    "GradScaler": "scales losses, which DeepSpeed does itself",
    "autocast": "has autocast, which DeepSpeed turns off in its engine",
    "load_state_dict": "loads a state, and parameters are the engine's by then",
    "get_total_norm": "reads gradients, of which each rank has a part",
    "clip_grads_with_norm_": "clips gradients, of which each rank has a part",
    "create_graph": "differentiates gradients, of which each rank has a part",
    "retain_graph": "goes backward through one forward pass twice, which DeepSpeed's hooks cannot",
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
    _steps_alone: list[str] = field(default_factory=list)

    def read(self, edits: SourceEdits, objects: TrainingObjects, values: Mapping[str, Any]) -> None:
        """Read a piece of code, and remove the calls of ``clip_grad_norm_``.

        Args:
            edits: of the code.
            objects: what is trained.
            values: the notebook's objects by name.

        Raises:
            StrategyError: the engine cannot do what the code does.
        """
        for node in ast.walk(edits.tree):
            name = _name_of(node)
            if name in NOT_SPLIT:
                what = f"The code {NOT_SPLIT[name]}: `{ast.unparse(node)}`"
                raise StrategyError(refused(what, "--strategy zero1 or fsdp"))
        _check_forward_passes(edits.tree, {*objects.models})
        _check_optimizers(edits.tree, objects)
        clipping = [
            node
            for node in ast.walk(edits.tree)
            if isinstance(node, ast.Call) and is_clipping(node, values)
        ]
        statements = {id(n.value): n for n in ast.walk(edits.tree) if isinstance(n, ast.Expr)}
        steps = _steps_of(edits.tree, objects)
        before_steps = {each for before in steps.values() for each in before}
        for call in clipping:
            statement = statements.get(id(call))
            if statement is None or statement not in before_steps:
                what = f"DeepSpeed clips at each step: `{ast.unparse(call)}` is conditional or read"
                raise StrategyError(refused(what, "clip_grad_norm_ as a statement before the step"))
            check_clips_all(call, objects, values)
            self.clipping.add(norm_of(call, edits.tree, values))
            edits.remove(statement)
        clips = {statements[id(call)] for call in clipping}
        self._steps_alone += [
            ast.unparse(step) for step, before in steps.items() if clips.isdisjoint(before)
        ]
        if len(self.clipping) > 1:
            what = f"Gradients are clipped to several norms: {' and '.join(sorted(self.clipping))}"
            raise StrategyError(refused(what, "one of them"))
        if self.clipping and self._steps_alone:
            step = self._steps_alone[0]
            what = f"DeepSpeed clips at each step, and the code does not before `{step}`"
            raise StrategyError(refused(what, "clip_grad_norm_ before each step, or two cells"))
        self.accumulates |= _accumulates(edits.tree, steps.keys())


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
    if others == [model] and not optimizers:
        what = "DeepSpeed's engine is made before the cell, and the cell makes the optimizer"
        raise StrategyError(refused(what, "make the optimizer in an earlier cell"))
    if others != [model] or len(optimizers) != 1:
        what = "DeepSpeed's engine trains one model with one optimizer, made before the cell"
        raise StrategyError(refused(what, "--strategy zero1 or fsdp"))
    name = optimizers[0]
    if any(getattr(m, "max_norm", None) is not None for m in values[model].modules()):
        what = f"`{model}` has an Embedding with max_norm, which changes weights in forward"
        raise StrategyError(refused(what, "--strategy tp, or no max_norm"))
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
        case ast.keyword(arg=str(name), value=ast.Constant(value=True)):
            return name
    return ""


def _check_optimizers(tree: ast.Module, objects: TrainingObjects) -> None:
    """Check that code asks an optimizer for what an engine's has.

    Raises:
        StrategyError: it does not.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if names_optimizer(
                owner, objects
            ):
                what = ""
                if attr == "state_dict":
                    what = "reads the optimizer's state, of which each rank has a part"
                elif attr == "step" and (node.args or node.keywords):
                    what = "gives a closure to step(), and DeepSpeed takes none"
                elif attr == "add_param_group":
                    what = "adds parameters, and the engine has those of its start"
                if what:
                    what = f"The code {what}: `{ast.unparse(node)}`"
                    raise StrategyError(refused(what, "remove it, or --strategy zero1 or fsdp"))


def _check_forward_passes(tree: ast.Module, models: set[str]) -> None:
    """Check that each forward pass of a model has a backward pass of its own.

    Raises:
        StrategyError: a loss is computed from several, for which DeepSpeed's hooks do not wait.
    """
    evaluated = set(without_gradients(tree))
    for block in _bodies(tree):
        backward = [each for each in block if _is_call_of(each, "backward")]
        if not backward:
            continue
        calls = [
            (node, is_repeated)
            for statement in block
            for node, is_repeated in _calls_in(statement)
            if last_name(node.func) in models and id(node) not in evaluated
        ]
        if len(calls) > len(backward) or any(is_repeated for _, is_repeated in calls):
            model = ast.unparse(calls[-1][0].func)
            what = f"The code calls `{model}` several times for one backward()"
            instead = (
                "one call on joined batches, no_grad() around others, or --strategy zero1 or fsdp"
            )
            raise StrategyError(refused(f"{what}, which DeepSpeed's engine cannot", instead))


def _calls_in(node: ast.AST, is_repeated: bool = False) -> Iterator[tuple[ast.Call, bool]]:
    """Yield the calls of a statement, except in loops that train, and whether each is in a loop."""
    if isinstance(node, ast.For | ast.While):
        if any(_name_of(each) == "backward" for each in ast.walk(node)):
            return
        is_repeated = True
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
        return
    is_repeated |= isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp)
    if isinstance(node, ast.Call):
        yield node, is_repeated
    for child in ast.iter_child_nodes(node):
        yield from _calls_in(child, is_repeated)


def check_gradients_end(codes: Iterable[str]) -> None:
    """Check that the code drops gradients after a step, as DeepSpeed does in any case.

    Raises:
        StrategyError: it does not, so that they add up on one device.
    """
    if not any("zero_grad(" in code for code in codes):
        what = "The code has no zero_grad(), and DeepSpeed drops gradients at each step"
        raise StrategyError(refused(what, "zero_grad() before backward()"))


def _accumulates(tree: ast.Module, steps: Collection[ast.stmt]) -> bool:
    """Return whether several backward passes may come before one of the optimizer's ``steps``."""
    passes = [block for block in _bodies(tree) for each in block if _is_call_of(each, "backward")]
    return (
        len(passes) > 1
        or any(set(block).isdisjoint(steps) for block in passes)
        or any(isinstance(node, ast.Continue) for node in ast.walk(tree))
    )


def _steps_of(tree: ast.Module, objects: TrainingObjects) -> dict[ast.stmt, list[ast.stmt]]:
    """Return each step of an optimizer with the statements before it in its block."""
    steps: dict[ast.stmt, list[ast.stmt]] = {}
    for block in _bodies(tree):
        for place, statement in enumerate(block):
            if _is_call_of(statement, "step") and _is_optimizer(statement, objects):
                steps[statement] = block[:place]
    return steps


def _is_call_of(statement: ast.stmt, method: str) -> bool:
    match statement:
        case (
            ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr)))
            | ast.Assign(value=ast.Call(func=ast.Attribute(attr=attr)))
        ):
            return attr == method
    return False


def _is_optimizer(step: ast.stmt, objects: TrainingObjects) -> bool:
    """Return whether a step is an optimizer's."""
    assert isinstance(step, ast.Expr | ast.Assign)
    call = step.value
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    return names_optimizer(call.func.value, objects)


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield each block of statements."""
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(body, list):
                yield body
