"""The models, optimizers and loaders that a cell trains with, by the names that it uses."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from .values import Kind, kind_of


@dataclass(frozen=True)
class TrainingObjects:
    """What a script has to distribute.

    Attributes:
        kinds: the kind of each name that exists before the cell.
        models: the names of the models that the cell trains, and that exist before it.
        made_models: the names of models that the cell itself makes.
        loaders: the names of the loaders that exist before it.
        loose: whether an optimizer trains tensors that belong to no model.
    """

    kinds: Mapping[str, Kind]
    models: tuple[str, ...]
    made_models: tuple[str, ...]
    loaders: tuple[str, ...]
    loose: bool

    def of_kind(self, kind: Kind) -> list[str]:
        """Return the names of all objects of a kind."""
        return [name for name, known in self.kinds.items() if known == kind]


def find_training_objects(
    names: list[str], values: Mapping[str, Any], cell: ast.Module
) -> TrainingObjects:
    """Find them among ``names``, which the cell and its functions read.

    Args:
        names: names of the notebook.
        values: the notebook's objects by name.
        cell: the syntax tree of the cell.
    """
    kinds = {name: kind_of(values[name]) for name in names if name in values}
    modules = {name: values[name] for name, kind in kinds.items() if kind == "module"}
    optimizers = [values[name] for name, kind in kinds.items() if kind == "optimizer"]
    trained = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    made_here = {
        target
        for node in ast.walk(cell)
        if (target := assigned_name(node)) and _makes(node, torch.optim.Optimizer, values)
    }
    models = tuple(
        name
        for name, module in modules.items()
        if any(id(p) in trained for p in module.parameters())
        or (made_here and any(p.requires_grad for p in module.parameters()))
    )
    models = tuple(name for name in models if not _is_part(modules[name], name, models, modules))
    owned = {id(p) for name in models for p in modules[name].parameters()}
    return TrainingObjects(
        kinds=kinds,
        models=models,
        made_models=tuple(
            dict.fromkeys(
                target
                for node in cell.body
                if (target := assigned_name(node)) and _makes(node, nn.Module, values)
            )
        ),
        loaders=tuple(name for name, kind in kinds.items() if kind == "loader"),
        loose=bool(trained - owned),
    )


def assigned_name(node: ast.AST) -> str:
    """Return the name that an assignment to a single name binds, else an empty string."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def called_object(node: ast.expr | None, values: Mapping[str, Any]) -> Any:
    """Return what a call such as ``nn.Linear(8, 4).to(device)`` calls first, or None."""
    while isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            node = function.value
            continue
        return _resolved(function, values)
    return None


def _makes(node: ast.AST, kind: type, values: Mapping[str, Any]) -> bool:
    """Return whether an assignment makes an object of ``kind``, as far as its source shows."""
    called = called_object(getattr(node, "value", None), values)
    if inspect.ismethod(called) and isinstance(called.__self__, type):  # Model.from_pretrained
        called = called.__self__
    if isinstance(called, type):
        if kind is nn.Module and called.__name__.startswith("AutoModel"):  # of transformers
            return True
        # A loss is a module, too, but has nothing to train.
        return issubclass(called, kind) and "loss" not in called.__module__
    return False


def _resolved(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return values.get(name)
        case ast.Attribute(value=value, attr=attr):
            return getattr(_resolved(value, values), attr, None)
    return None


def _is_part(
    module: nn.Module, name: str, models: tuple[str, ...], modules: Mapping[str, nn.Module]
) -> bool:
    """Return whether a model is a part of another one, or the same under a later name."""
    for other in models:
        if other == name:
            continue
        whole = modules[other]
        if whole is module:
            if models.index(other) < models.index(name):
                return True
        elif any(part is module for part in whole.modules()):
            return True
    return False


def loader_is_sharded(loader: DataLoader[Any]) -> bool:
    """Return whether a loader draws batches of indices, which ranks can share."""
    is_stream = isinstance(loader.dataset, IterableDataset)
    return loader.batch_sampler is not None and not is_stream
