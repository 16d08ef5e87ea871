"""Values of a notebook in a script: as literals, or as files beside it that the script loads."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import pickletools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

Kind = Literal["module", "optimizer", "scheduler", "loader", "generator", "data", "plain", "other"]

PLAIN = (bool, int, float, complex, str, bytes, type(None))

LONGEST_LITERAL = 200
"""Characters of a literal in a script; longer values are stored in files."""


@dataclass(frozen=True)
class StoredValue:
    """A value that a script loads, or has as a literal.

    Attributes:
        code: the statement that binds the name.
        imports: the import statements that it needs.
        file: name of the file; empty for a literal.
        needs: classes and functions of the notebook that the file refers to.
        write: writes the file.
    """

    code: str
    imports: tuple[str, ...] = ()
    file: str = ""
    write: Callable[[Path], None] = field(default=lambda path: None, repr=False)
    needs: tuple[str, ...] = ()


def kind_of(value: object) -> Kind:
    """Return how a script gets an object like ``value``."""
    kinds: dict[Kind, Any] = {
        "module": nn.Module,
        "optimizer": torch.optim.Optimizer,
        "scheduler": torch.optim.lr_scheduler.LRScheduler,
        "loader": DataLoader,
        "generator": torch.Generator,
        "data": (torch.Tensor, np.ndarray, Subset),
    }
    for kind, types_ in kinds.items():
        if isinstance(value, types_):
            return kind
    if type(value).__module__.partition(".")[0] == "pandas":
        return "data"
    return "plain" if is_plain(value) else "other"


def is_plain(value: object) -> bool:
    """Return whether ``value`` is a number or text, or a container of such values."""
    if isinstance(value, dict):
        return all(map(is_plain, [*value, *value.values()]))
    return type(value) in PLAIN or (
        type(value) in (list, tuple, set) and all(map(is_plain, value))  # type: ignore[call-overload]
    )


def literal_value(node: ast.expr | None) -> tuple[bool, object]:
    """Return whether ``node`` is a literal, and its value."""
    try:
        return node is not None, ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None


def stored_value(name: str, value: Any) -> StoredValue | None:
    """Return how a script binds ``name`` to what ``value`` is now; None if that is impossible."""
    if is_plain(value) and len(text := repr(value)) <= LONGEST_LITERAL and _is_exact(text, value):
        return StoredValue(f"{name} = {text}")
    if isinstance(value, torch.Tensor):
        return _stored_tensor(name, value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return StoredValue(
            f'{name} = np.load(DATA / "{name}.npy")',
            ("import numpy as np",),
            f"{name}.npy",
            lambda path: np.save(path, value),
        )
    try:
        data = pickle.dumps(value, protocol=2)  # which has names of classes in one piece
    except Exception:  # of user code
        return None
    named = [str(arg).split() for code, arg, _ in pickletools.genops(data) if code.name == "GLOBAL"]
    return StoredValue(
        f'{name} = torch.load(DATA / "{name}.pt", weights_only=False)',
        file=f"{name}.pt",
        write=lambda path: torch.save(value, path),
        needs=tuple(dict.fromkeys(name for module, name in named if module == "__main__")),
    )


def stored_subset(name: str, value: Subset[Any], dataset: str) -> StoredValue:
    """Return how a script binds ``name`` to a subset of what the name ``dataset`` holds."""
    indices = torch.as_tensor(list(value.indices))
    return StoredValue(
        f'{name} = Subset({dataset}, torch.load(DATA / "{name}_indices.pt").tolist())',
        ("from torch.utils.data import Subset",),
        f"{name}_indices.pt",
        lambda path: torch.save(indices, path),
    )


def stored_state(name: str, value: Any) -> StoredValue:
    """Return how a script gives ``name`` the state that ``value`` has now."""
    state = on_cpu(value.state_dict())
    try:
        pickled_safely = not _has_objects(state)
    except RecursionError:
        pickled_safely = False
    more = "" if pickled_safely else ", weights_only=False"
    if isinstance(value, nn.Module):
        more = ', map_location="cpu"' + more if _has_gpu_tensors(value) else more
    return StoredValue(
        f'{name}.load_state_dict(torch.load(DATA / "{name}.pt"{more}))',
        file=f"{name}.pt",
        write=lambda path: torch.save(state, path),
    )


def stored_shards(
    name: str, optimizer: torch.optim.Optimizer, model_name: str, model: nn.Module
) -> StoredValue:
    """Return how a script gives an optimizer its states, if the model's parameters are sharded."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    state = on_cpu(get_optimizer_state_dict(model, optimizer))
    names = "StateDictOptions, set_optimizer_state_dict"
    return StoredValue(
        f'state = torch.load(DATA / "{name}.pt")\n'
        "options = StateDictOptions(full_state_dict=True)\n"
        f"set_optimizer_state_dict({model_name}, {name}, state, options=options)",
        (f"from torch.distributed.checkpoint.state_dict import {names}",),
        f"{name}.pt",
        lambda path: torch.save(state, path),
    )


def on_cpu(state: Any) -> Any:
    """Return a copy of a state whose tensors are on the CPU, each with memory of its own."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return type(state)((key, on_cpu(part)) for key, part in state.items())
    if isinstance(state, list | tuple) and type(state) in (list, tuple):
        return type(state)(map(on_cpu, state))
    return copy.deepcopy(state)


def importing_statement(name: str, value: object) -> str | None:
    """Return a statement that imports ``value`` as ``name``, or None."""
    if isinstance(value, types.ModuleType):
        module = value.__name__
        return f"import {module}" if name == module else f"import {module} as {name}"
    source, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(source, str) or not isinstance(own, str) or source == "__main__":
        return None
    try:
        found = getattr(importlib.import_module(source), own, None)
    except Exception:  # of user code
        return None
    if found is not value or source == "builtins":
        return None
    return f"from {source} import {own}" + (f" as {name}" if name != own else "")


def _stored_tensor(name: str, value: torch.Tensor) -> StoredValue:
    kept = value.detach().cpu().clone()
    to_gpu = '.to("cuda")' if value.is_cuda else ""
    trained = ".requires_grad_()" if value.requires_grad and value.is_leaf else ""
    return StoredValue(
        f'{name} = torch.load(DATA / "{name}.pt"){to_gpu}{trained}',
        file=f"{name}.pt",
        write=lambda path: torch.save(kept, path),
    )


def _is_exact(text: str, value: object) -> bool:
    """Return whether ``text`` is a literal of ``value``: not so for nan and infinities."""
    is_literal, read = literal_value(ast.parse(text, mode="eval").body)
    return is_literal and type(read) is type(value) and read == value


def _has_objects(state: Any) -> bool:
    """Return whether a state has parts that ``torch.load`` reads only without ``weights_only``."""
    if isinstance(state, dict):
        return any(map(_has_objects, [*state.keys(), *state.values()]))
    if isinstance(state, list | tuple | set):
        return any(map(_has_objects, state))
    return not isinstance(state, torch.Tensor | bool | int | float | str | type(None))


def _has_gpu_tensors(module: nn.Module) -> bool:
    return any(tensor.is_cuda for tensor in module.state_dict().values())


def holds_parameters(value: Any) -> bool:
    """Return whether a value is a parameter, or a list, tuple or dict with one: of an optimizer."""
    if isinstance(value, dict):
        return any(map(holds_parameters, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_parameters, value))
    return isinstance(value, nn.Parameter)
