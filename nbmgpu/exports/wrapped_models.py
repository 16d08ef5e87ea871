"""Code that would go past the models that a script wraps, so that gradients are not averaged."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from nbmgpu.errors import StrategyError

from .refusals import refused
from .statements import base_name, without_gradients
from .training_objects import TrainingObjects

BUILD_BEFORE = "build and freeze the model in an earlier cell"


def check_calls(tree: ast.Module, objects: TrainingObjects, values: Mapping[str, Any]) -> None:
    """Check that code calls whole models, and not their parts.

    Raises:
        StrategyError: it calls a part, by its own name or as an attribute of an argument.
    """
    models = [values[name] for name in objects.models]
    parts = {id(part) for model in models for part in model.modules() if part is not model}
    children = {name for model in models for name, _ in model.named_children()}
    evaluated = set(without_gradients(tree))
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and id(n) not in evaluated)
    for call in calls:
        match call.func:
            case ast.Name(id=name) if id(values.get(name)) in parts:
                _refuse(f"`{name}` is a part of a model, and is called on its own")
            case ast.Attribute() as function:
                base, first = base_name(function), _first_attribute(function)
                is_model = base not in values or isinstance(values[base], nn.Module)
                if first in children and is_model and base not in ("self", *objects.models):
                    _refuse(f"`{ast.unparse(function)}` calls a part of a model")


def _refuse(what: str) -> None:
    what = f"{what}: ranks average the gradients of whole models"
    raise StrategyError(refused(what, "call it in the forward of one model"))


def _first_attribute(node: ast.Attribute) -> str:
    """Return ``b`` of ``a.b.c``."""
    while isinstance(node.value, ast.Attribute):
        node = node.value
    return node.attr


def check_changes(cell: ast.Module, objects: TrainingObjects) -> None:
    """Check that the cell does not change models after they are wrapped.

    Raises:
        StrategyError: it does.
    """
    models = {*objects.models, *objects.made_models}
    for name in _changed_attributes(cell):
        if name in models:
            what = f"The cell changes the layers of `{name}`, which are wrapped by then"
            raise StrategyError(refused(what, BUILD_BEFORE))
    if objects.made_models and "requires_grad" in ast.unparse(cell):
        what = "The cell makes a model and freezes parameters of it, which are wrapped by then"
        raise StrategyError(refused(what, BUILD_BEFORE))


def _changed_attributes(tree: ast.AST) -> Iterator[str]:
    """Yield the base names of attributes that are assigned or deleted."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=attr, ctx=ast.Store() | ast.Del()):
                if attr not in ("requires_grad", "grad", "data", "training"):
                    yield base_name(node)


def check_frozen(objects: TrainingObjects, values: Mapping[str, Any], source: str) -> None:
    """Check that frozen parameters are frozen by statements that the script has.

    Raises:
        StrategyError: they were frozen in another way, as by a function of the notebook.
    """
    if "requires_grad" in source:
        return
    for name in objects.models:
        if any(not parameter.requires_grad for parameter in values[name].parameters()):
            what = f"`{name}` has frozen parameters, and no statement of the script freezes them"
            raise StrategyError(refused(what, "set requires_grad in a loop of its own"))
