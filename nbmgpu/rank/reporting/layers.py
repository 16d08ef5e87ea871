"""The layers of a model as its user names them, with their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from nbmgpu.strategies.base import Unit

CONTAINERS = (nn.Sequential, nn.ModuleList)

NO_MODULE = "(in no module)"
"""The name of parameters that only an optimizer has."""


def layers_of(units: Iterable[Unit]) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of ``units`` by layer; a shared one is in the first that has it.

    A layer is named as in ``state_dict()``, after the class of its model if there are several.
    """
    found: dict[str, list[nn.Parameter]] = {}
    seen: set[int] = set()
    units = list(units)
    roots = [root for unit in units for root in unit.modules]
    for prefix, root in zip(_prefixes(roots), roots, strict=True):
        for name, parameters in layers(root).items():
            fresh = [p for p in parameters if id(p) not in seen]
            if fresh:
                seen.update(map(id, fresh))
                found[prefix + name] = fresh
    rest = [p for unit in units for p in unit.parameters() if id(p) not in seen]
    return found | ({NO_MODULE: rest} if rest else {})


def _prefixes(roots: list[nn.Module]) -> list[str]:
    if len(roots) < 2:
        return [""] * len(roots)
    names = [type(root).__name__ for root in roots]
    counts = {name: names.count(name) for name in names}
    numbers = [names[:i].count(name) + 1 for i, name in enumerate(names)]
    return [
        f"{name}.{number}: " if counts[name] > 1 else f"{name}: "
        for name, number in zip(names, numbers, strict=True)
    ]


def layers(root: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of ``root`` by layer, each once, in the order of the modules.

    Layers are the members of containers and, outside of these, the outermost modules that have no
    container inside.  A parameter outside of both has an entry of its own.
    """
    names = set(_layer_names(*_without_wrappers(root)))
    found: dict[str, list[nn.Parameter]] = {}
    for name, parameter in root.named_parameters():
        parts = name.split(".")
        paths = (".".join(parts[:length]) for length in range(len(parts)))
        layer = next((path for path in paths if path in names), name)
        found.setdefault(layer or type(root).__name__, []).append(parameter)
    return found


def _without_wrappers(root: nn.Module) -> tuple[nn.Module, str]:
    """Return the outermost module that does not merely wrap another one, and its name."""
    module, name = root, ""
    while not isinstance(module, CONTAINERS) and not module._parameters:
        children = _children(module, name)
        if len(children) != 1:
            break
        ((name, module),) = children.items()
    return module, name


def _layer_names(module: nn.Module, name: str) -> Iterator[str]:
    """Yield the names of the layers in ``module``, or its own if it has no submodules."""
    children = _children(module, name)
    if not children:
        yield name
    for path, child in children.items():
        holds = (child,) if isinstance(module, CONTAINERS) else child.modules()
        if any(isinstance(m, CONTAINERS) for m in holds):
            yield from _layer_names(child, path)
        else:
            yield path


def _children(module: nn.Module, name: str) -> dict[str, nn.Module]:
    """Return the submodules that have parameters, by their names below ``name``."""
    return {
        f"{name}.{child_name}" if name else child_name: child
        for child_name, child in module.named_children()
        if any(True for _ in child.parameters())
    }
