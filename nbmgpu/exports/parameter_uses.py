"""Code that computes with parameters themselves, of which ranks or an engine may hold shards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nbmgpu.errors import StrategyError

from .refusals import refused
from .statements import last_name, without_gradients
from .training_objects import TrainingObjects

PENALTIES = frozenset({"abs", "mean", "norm", "pow", "square", "sum"})
"""Methods, or functions of torch, of a penalty on weights."""

SHARDS = "`{call}` has this rank's shards of the optimizer's state, and rank 0 saves its own."

UNCHANGING = frozenset({"requires_grad_", "share_memory_", "retain_grad_"})
"""Methods that end as those that change a tensor do."""


def check_penalties(tree: ast.Module, objects: TrainingObjects) -> None:
    """Check that no loss has a penalty on parameters: there are shards of them in its graph.

    Raises:
        StrategyError: one has.
    """
    evaluated = set(without_gradients(tree))
    for node in _uses(tree, objects):
        computes = False
        match node:
            case ast.Call(func=ast.Attribute(attr=attr)):
                computes = attr in PENALTIES
            case ast.BinOp(op=ast.Pow()):
                computes = True
        if computes and id(node) not in evaluated:
            what = f"`{ast.unparse(node)}` computes with parameters, of which each rank has shards"
            raise StrategyError(refused(what, "weight_decay of the optimizer, or --strategy ddp"))


def states_of_shards(tree: ast.Module, objects: TrainingObjects) -> Iterator[str]:
    """Yield notes on states of optimizers, of which each rank has shards."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="state_dict")):
                if names_optimizer(owner, objects):
                    yield SHARDS.format(call=ast.unparse(node))


def names_optimizer(owner: ast.expr, objects: TrainingObjects) -> bool:
    """Return whether an object is an optimizer, as far as its name says: ``self.opt``."""
    name = last_name(owner)
    if isinstance(owner, ast.Name) and name in objects.kinds:
        return objects.kinds[name] == "optimizer"
    return "opt" in name.lower()


def check_engine_parameters(tree: ast.Module, objects: TrainingObjects) -> None:
    """Check that code leaves the parameters of DeepSpeed's engine to its optimizer.

    Raises:
        StrategyError: it changes them, which the engine's copies undo, or copies the engine.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[ast.Name(id=name)]) if name in objects.models:
                if last_name(function) == "deepcopy":
                    what = (
                        f"`{ast.unparse(node)}` copies DeepSpeed's engine, which cannot be copied"
                    )
                    raise StrategyError(refused(what, f"copy `{name}` in an earlier cell"))
    for node in _uses(tree, objects):
        changes = False
        match node:
            case ast.Call(func=ast.Attribute(attr=attr)):
                changes = attr.endswith("_") and attr not in UNCHANGING
            case ast.Attribute(attr="data", ctx=ast.Store()):
                changes = True
        if changes:
            what = f"`{ast.unparse(node)}` changes parameters, of which DeepSpeed has copies"
            raise StrategyError(refused(what, "--strategy zero1 or ddp"))


def _uses(tree: ast.Module, objects: TrainingObjects) -> Iterator[ast.expr]:
    """Yield calls and assignments of parameters: ``p.abs()``, ``p ** 2``, ``torch.norm(p)``."""
    names = set(_parameter_names(tree, objects))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner)):
                first = node.args[0] if node.args else owner
                if _is_parameter(owner, names, objects) or (
                    ast.unparse(owner) in ("torch", "nn.init", "torch.nn.init", "init")
                    and _is_parameter(first, names, objects)
                ):
                    yield node
            case ast.Attribute(value=owner, ctx=ast.Store()):
                if _is_parameter(owner, names, objects):
                    yield node
            case ast.BinOp(left=left):
                if _is_parameter(left, names, objects):
                    yield node


def _is_parameter(node: ast.expr, names: set[str], objects: TrainingObjects) -> bool:
    """Return whether an expression is a parameter, its values, or computed from them at once."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)):
                if attr in ("detach", "clone", "cpu", "numel", "item", "state_dict", "to"):
                    return False
                node = inner
            case ast.Attribute(value=inner, attr="data"):
                node = inner
            case ast.Attribute(value=inner, attr="weight" | "bias"):
                while isinstance(inner, ast.Attribute | ast.Subscript):
                    inner = inner.value
                return isinstance(inner, ast.Name) and inner.id in objects.models
            case ast.Name(id=name):
                return name in names
            case _:
                return False


def _parameter_names(tree: ast.Module, objects: TrainingObjects) -> Iterator[str]:
    """Yield the names that loops and comprehensions give to the parameters of what is trained."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.For | ast.comprehension):
            continue
        sources, targets = [node.iter], [node.target]
        match node:
            case (
                ast.For(iter=ast.Call(func=ast.Name(id="zip"), args=many), target=ast.Tuple(elts=e))
                | ast.comprehension(
                    iter=ast.Call(func=ast.Name(id="zip"), args=many), target=ast.Tuple(elts=e)
                )
            ):
                sources, targets = many, e
        for source, target in zip(sources, targets, strict=False):
            match source:
                case ast.Call(func=ast.Attribute(value=owner, attr="parameters")):
                    if isinstance(target, ast.Name) and _is_trained(owner, objects):
                        yield target.id
                case ast.Call(func=ast.Attribute(value=owner, attr="named_parameters")):
                    if isinstance(target, ast.Tuple) and _is_trained(owner, objects):
                        yield from (e.id for e in target.elts[1:] if isinstance(e, ast.Name))


def _is_trained(owner: ast.expr, objects: TrainingObjects) -> bool:
    """Return whether an object is a model that is trained, or of an unknown kind."""
    if isinstance(owner, ast.Name) and owner.id in objects.kinds:
        return owner.id in objects.models
    return True
