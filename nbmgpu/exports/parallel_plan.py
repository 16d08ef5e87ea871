"""The plan by which an exported script splits the layers of a model: torch's tensor parallelism."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from torch import nn

from nbmgpu.errors import StrategyError
from nbmgpu.strategies.tp.layer_plan import plan_layers
from nbmgpu.strategies.tp.named_plan import NamedPlan

from .refusals import refused

MESH = "from torch.distributed.device_mesh import init_device_mesh"
STYLES = "ColwiseParallel, RowwiseParallel, parallelize_module"
IMPORTS = (
    MESH,
    "from torch.distributed.tensor import Replicate",
    "from torch.distributed.tensor.experimental import implicit_replication",
    f"from torch.distributed.tensor.parallel import {STYLES}",
)
"""What ``parallelize`` needs; the script drops those that it does not use."""

DECORATOR = "@implicit_replication()  # plain tensors count as whole beside split parameters"
"""Of ``main``: clipping and ``foreach`` optimizers mix split parameters and others."""

OUTPUTS = "ColwiseParallel()"
INPUTS = "RowwiseParallel()"
GATHERED_OUTPUTS = "ColwiseParallel(output_layouts=Replicate())"
WHOLE_INPUTS = "RowwiseParallel(input_layouts=Replicate())"
"""Styles: between the first two, activations stay split; the others take and return whole ones."""

DESCRIPTIONS = ("device", "dtype", "shape", "requires_grad")
"""Attributes of a parameter that say nothing of its values."""


def parallelize(
    name: str, model: nn.Module | None, named: NamedPlan | None, ranks: int
) -> list[str]:
    """Return the statements that split the layers of ``name`` over all ranks.

    Activations stay split where it is certain that they can: in stacks of layers with activation
    functions, and in models of Hugging Face that have a plan.  Elsewhere each layer returns whole
    ones, as no rank is at hand to try it.

    Raises:
        StrategyError: the cell makes the model, or torch's styles split none of its layers.
    """
    if model is None:
        what = f"--strategy tp needs the layers of `{name}`, which the cell makes"
        raise StrategyError(refused(what, "make the model in an earlier cell"))
    styles = _styles(model, named, ranks)
    if not styles:
        what = f"`{name}` has no nn.Linear or nn.Embedding that {ranks} ranks could split"
        what += ", whose weight is used in its own call alone" if _read_by_others(model) else ""
        raise StrategyError(refused(what, "--strategy fsdp"))
    lines = [f"{name} = parallelize_module(", f"    {name},", "    device_mesh,", "    {"]
    lines += [f'        "{key}": {style},' for key, style in _by_pattern(model, styles)]
    lines += ["    },", ")"]
    lines += [f"{name}.{later} = {name}.{first}" for first, later in _ties(model, styles)]
    if any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()):
        lines.append("torch.backends.mha.set_fastpath_enabled(False)  # it reads weights itself")
    return lines


def mesh(device: str) -> str:
    """Return the statement that makes the mesh of all ranks, with a kind of ``device``."""
    return f'device_mesh = init_device_mesh("{device}", (dist.get_world_size(),))'


def _styles(model: nn.Module, named: NamedPlan | None, ranks: int) -> dict[str, str]:
    """Return the style of each layer that is split, by its name."""
    plan = plan_layers(model, ranks, allow_empty=False, named=named)
    inside = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    excluded = {part for attention in inside for part in attention.modules()}
    certain = [b for b in plan.blocks if b.is_certain and not b.on_parts and b.is_allowed()]
    first = {layer for block in certain for layer in block.first}
    last = {layer for block in certain for layer in block.last}
    planned = {each.module: each for each in plan.modules if each.module not in excluded}
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if module not in planned:
            continue
        if isinstance(module, nn.Embedding):
            found[name] = WHOLE_INPUTS
        elif isinstance(module, nn.Linear) and planned[module].style == "inputs":
            found[name] = INPUTS if module in last else WHOLE_INPUTS
        elif isinstance(module, nn.Linear):
            found[name] = OUTPUTS if module in first else GATHERED_OUTPUTS
    read = _read_by_others(model)
    found = {name: style for name, style in found.items() if name not in read}
    whole = _tied_outside(model, set(found))
    return {name: style for name, style in found.items() if name not in whole}


def _read_by_others(model: nn.Module) -> set[str]:
    """Return layers whose weight other modules compute with: the styles split a layer's own call.

    Such a module is one that ends in ``F.linear(x, self.embed.weight)``.
    """
    read = {cls: _layers_read(cls) for cls in {type(module) for module in model.modules()}}
    return {
        f"{name}.{path}" if name else path
        for name, module in model.named_modules()
        for path in read[type(module)]
    }


def _layers_read(cls: type) -> frozenset[str]:
    """Return ``embed`` if methods of a module read the values of ``self.embed.weight``."""
    found: set[str] = set()
    for method in _methods(cls):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        except (OSError, TypeError, SyntaxError):  # without source
            continue
        nodes = list(ast.walk(tree))
        described = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr in DESCRIPTIONS
        }
        for node in nodes:
            match node:
                case ast.Attribute(value=layer, attr="weight" | "bias", ctx=ast.Load()):
                    path = ast.unparse(layer)
                    if path.startswith("self.") and id(node) not in described:
                        found.add(path.removeprefix("self."))
    return frozenset(found)


def _methods(cls: type) -> Iterator[Callable[..., Any]]:
    """Yield the methods of a module that its forward pass may run, without those of torch."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "torch":
            continue
        for name, method in vars(base).items():
            if inspect.isfunction(method) and "init" not in name and name != "reset_parameters":
                yield method


def _weights(model: nn.Module) -> Mapping[int, list[str]]:
    """Return the names of the modules that hold each parameter called ``weight``, by its id."""
    found: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if (weight := module._parameters.get("weight")) is not None:
            found.setdefault(id(weight), []).append(name)
    return found


def _tied_outside(model: nn.Module, split: set[str]) -> set[str]:
    """Return layers whose weight a module that is not split has, too."""
    shared = (names for names in _weights(model).values() if not split.issuperset(names))
    return {name for names in shared for name in names}


def _ties(model: nn.Module, styles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the attributes that share a weight: splitting a layer gives it a weight of its own."""
    for first, *others in _weights(model).values():
        if first in styles:
            yield from ((f"{first}.weight", f"{other}.weight") for other in others)


def _by_pattern(model: nn.Module, styles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield keys of the plan with their styles; ``*`` stands for the layers of a list."""
    names = [name for name, _ in model.named_modules()]
    done: set[str] = set()
    for name, style in styles.items():
        if name in done:
            continue
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        matching = [other for other in names if _matches(other, pattern)]
        key = pattern if all(styles.get(other) == style for other in matching) else name
        done.update(matching if key == pattern else [name])
        yield key, style


def _matches(name: str, pattern: str) -> bool:
    """Whether ``parallelize_module`` finds ``name`` by ``pattern``: part by part."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch, parts, patterns))
