"""Finds the model, the optimizer and the DataLoader among the names of a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbmgpu.errors import OptionError, closest_match, format_message

from .model_advisor import ModelAdvisor


@dataclass(frozen=True)
class TrainingObjects:
    """Names of a model, an optimizer and a loader; an empty string where there is none."""

    namespace: Mapping[str, Any]
    model: str = ""
    optimizer: str = ""
    loader: str = ""

    @classmethod
    def among(cls, names: Iterable[str], namespace: Mapping[str, Any]) -> TrainingObjects:
        """Find the first object of each type among ``names``.

        A model whose parameters the optimizer has is preferred.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return cls(namespace)
        names = list(names)
        from_trainers = _trainer_objects(names, namespace)
        names += from_trainers
        namespace = {**namespace, **from_trainers}
        data = sys.modules.get("torch.utils.data")

        def first(*types: Any) -> str:
            return next((n for n in names if isinstance(namespace[n], types)), "")

        optimizer = first(torch.optim.Optimizer)
        models = [n for n in names if isinstance(namespace[n], torch.nn.Module)]
        if optimizer:
            optimized = set(_parameter_ids(namespace[optimizer]))
            owners = [n for n in models
                      if optimized & {id(p) for p in namespace[n].parameters()}]  # fmt: skip
            models = owners or models
        models.sort(key=lambda n: -sum(1 for _ in namespace[n].parameters()))
        # Of several names for one model, take the oldest: ``trained = model`` comes later.
        same = [n for n in models if namespace[n] is namespace[models[0]]]
        own = [n for n in same if n not in from_trainers]
        model = (own[-1:] or same[:1] or [""])[0]
        # The data of a trainer belong to the trainer's own model.
        names = [n for n in names if n not in from_trainers
                 or namespace[n.rpartition(".")[0]].model is namespace.get(model)]  # fmt: skip
        loader = first(data.DataLoader) if data else ""
        return cls(namespace, model, optimizer, loader)

    @property
    def description(self) -> str:
        """The names that were found, or why no model was."""
        if self.model:
            return ", ".join(filter(None, (self.model, self.optimizer, self.loader)))
        if "torch" not in sys.modules:
            return "torch is not imported yet: first run the cells above that create the model"
        return (
            "the cell reads no model of this notebook; if it creates one itself, use "
            "%mgpu advise with the model's name"
        )

    def advisor(self) -> ModelAdvisor:
        """Return an advisor for the model, which must have been found."""
        get = self.namespace.get
        optimizer, loader = get(self.optimizer), get(self.loader)
        return ModelAdvisor(self.namespace[self.model], optimizer, loader=loader)


def find_training_objects(expressions: list[str], namespace: Mapping[str, Any]) -> TrainingObjects:
    """Return the model among ``expressions``, or among all names if there are none.

    Args:
        expressions: names, or attributes of them such as ``trainer.model``.
        namespace: the notebook's names.

    Raises:
        OptionError: an expression cannot be resolved, or there is no model.
    """
    own = [name for name in namespace if not name.startswith("_")]
    values = {each: _resolve(each, namespace, own) for each in expressions} or namespace
    found = TrainingObjects.among(expressions or reversed(own), values)
    if not found.model:
        asked = " and ".join(expressions)
        what = f"{asked} holds no torch.nn.Module" if asked else "This notebook has no model yet"
        raise OptionError(format_message(what, instead="%mgpu advise model optimizer loader"))
    return found


def _trainer_objects(names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the HF Trainers among ``names`` train, by the expressions that return it."""
    trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    objects: dict[str, Any] = {}
    for name in names:
        if isinstance(value := namespace[name], trainer):
            objects[f"{name}.model"] = value.model
            objects[f"{name}.optimizer"] = value.optimizer  # None before it trains
            with suppress(Exception):  # it has no dataset, or one that does not match its model
                objects[f"{name}.get_train_dataloader()"] = value.get_train_dataloader()
    return objects


def _resolve(expression: str, namespace: Mapping[str, Any], own: list[str]) -> Any:
    name, *path = expression.split(".")
    if name not in namespace:
        near = closest_match(name, own)
        instead = f"%mgpu advise {'.'.join([near, *path])}" if near else ""
        raise OptionError(format_message(f"There is no {name!r} in this notebook", instead=instead))
    value = namespace[name]
    for attribute in path:
        if not hasattr(value, attribute):
            what = f"{name!r} has no {attribute!r}"
            raise OptionError(format_message(what, instead=f"%mgpu advise {name}"))
        name, value = f"{name}.{attribute}", getattr(value, attribute)
    return value


def _parameter_ids(optimizer: Any) -> Iterator[int]:
    return (id(p) for group in optimizer.param_groups for p in group["params"])
