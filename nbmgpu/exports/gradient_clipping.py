"""Calls of ``clip_grad_norm_`` in a cell that DeepSpeed's engine can take over."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from nbmgpu.errors import StrategyError

from .refusals import refused
from .statements import last_name
from .training_objects import TrainingObjects, called_object


def is_clipping(call: ast.Call, values: Mapping[str, Any]) -> bool:
    """Return whether a call clips by the norm, perhaps by another name of the function."""
    known = ("clip_grad_norm_", "clip_grad_norm")
    name = getattr(called_object(call, values), "__name__", "")
    return last_name(call.func) in known or name in known


def check_clips_all(call: ast.Call, objects: TrainingObjects, values: Mapping[str, Any]) -> None:
    """Check that a call clips all that the engine trains.

    Raises:
        StrategyError: it clips a part, or what it clips is not known.
    """
    given = call.args[0] if call.args else next((k.value for k in call.keywords), None)
    children = {n for name in objects.models for n, _ in values[name].named_children()}
    match given:
        case ast.Name(id=name) if isinstance(values.get(name), list):
            trained = {id(p) for m in objects.models for p in values[m].parameters()}
            frozen = {
                id(p) for m in objects.models for p in values[m].parameters() if not p.requires_grad
            }
            if trained - frozen == {id(p) for p in values[name]} - frozen:
                return
        case (
            ast.ListComp(elt=ast.Name(id=each), generators=[ast.comprehension(iter=whole) as loop])
            | ast.GeneratorExp(
                elt=ast.Name(id=each), generators=[ast.comprehension(iter=whole) as loop]
            )
        ) if all(ast.unparse(test) == f"{each}.requires_grad" for test in loop.ifs):
            given = whole
        case ast.Call(func=ast.Name(id="filter"), args=[ast.Lambda() as test, whole]):
            if last_name(test.body) == "requires_grad":
                given = whole
    match given:
        case ast.Call(func=ast.Attribute(value=owner, attr="parameters"), args=[]):
            if last_name(owner) not in children:
                return
    what = f"DeepSpeed clips the gradients of the whole model, and `{ast.unparse(call)}` a part"
    raise StrategyError(refused(what, "clip_grad_norm_(model.parameters(), ...)"))


def norm_of(call: ast.Call, tree: ast.Module, values: Mapping[str, Any]) -> str:
    """Return the source of the maximum norm, which is known before the cell.

    Raises:
        StrategyError: it is not, or another norm than that of Euclid is meant.
    """
    is_first = bool(call.args)
    given = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "max_norm")]
    others = {keyword.arg for keyword in call.keywords} - {"max_norm", "foreach", "parameters"}
    if len(given) == 1 and (is_first or call.keywords) and not others:
        norm = _constant_of(given[0], tree)
        names = {node.id for node in ast.walk(norm) if isinstance(node, ast.Name)}
        bound = {
            node.arg if isinstance(node, ast.arg) else node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.arg)
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        }
        has_calls = any(isinstance(node, ast.Call) for node in ast.walk(norm))
        if names <= values.keys() - bound and not has_calls:
            return ast.unparse(norm)
    what = f"`{ast.unparse(call)}` has no norm that could be in DeepSpeed's configuration"
    raise StrategyError(refused(what, "a number as the norm"))


def _constant_of(norm: ast.expr, tree: ast.Module) -> ast.expr:
    """Return the number that the code assigns to a name, once; else the norm as it is."""
    stored = [
        node
        for node in ast.walk(tree)
        if isinstance(norm, ast.Name)
        and isinstance(node, ast.Name | ast.arg)
        and (node.arg if isinstance(node, ast.arg) else node.id) == norm.id
        and not isinstance(getattr(node, "ctx", None), ast.Load)
    ]
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name() as target], value=ast.Constant() as value):
                if stored == [target]:
                    return value
    return norm
